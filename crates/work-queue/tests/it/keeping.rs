//! What is removed and what is kept, and what operators can do.

use base::Timestamp;
use work_queue::{Filter, Keeper, State, Unfit};

use super::*;

testkit::on_all_stores!(
    only_what_was_finished_long_ago_is_removed,
    items_can_be_found_and_decided_on,
    a_decision_takes_an_item_from_its_holder,
    a_decision_on_one_item_leaves_the_waits_and_leases_of_others,
    it_is_told_who_has_an_item_and_since_when_it_is_what_it_is,
    what_is_kept_is_kept_from_when_it_was_done,
    what_was_done_can_be_done_again,
    doing_again_ends_while_workers_keep_up,
    doing_again_keeps_the_order_of_a_key_of_any_length,
    doing_again_keeps_the_order_of_a_key_that_goes_on_before_its_turn,
    doing_again_takes_items_in_flight_back,
    what_is_to_be_done_again_begins_anew,
    what_waits_for_an_operator_is_listed_in_the_order_of_waiting,
);

async fn only_what_was_finished_long_ago_is_removed(place: &SqlPlace) {
    let db = open(place).await;
    let long = queue_on(db.clone(), config());
    let short = queue_on(db.clone(), Config { retention: Duration::from_millis(1), ..config() });
    for n in 0..600 {
        push(&db, &long, &[&format!("{n}:done")]).await;
    }
    push(&db, &long, &["f:failed", "s:skipped", "i:in-flight"]).await;
    loop {
        let items = claim(&long).await;
        if items.is_empty() {
            break;
        }
        let outcome = |item: Item| match item.key.as_str() {
            "f" => Some((item, Outcome::Failed("x".into()))),
            "s" => Some((item, Outcome::Failed("y".into()))),
            "i" => None,
            _ => Some((item, Outcome::Done)),
        };
        let outcomes: Vec<_> = items.into_iter().filter_map(outcome).collect();
        long.finish(&outcomes).await.unwrap();
    }
    push(&db, &long, &["p:pending"]).await;
    let skipped = long.blocked_keys(10).await.unwrap().into_iter().find(|key| key.key == "s").unwrap();
    long.skip(skipped.number).await.unwrap().unwrap();

    assert_eq!(Keeper::new(long.clone()).remove_old().await.unwrap(), 0);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let keeper = Keeper::new(short);
    // A few at a time.
    assert_eq!(keeper.remove_old().await.unwrap(), 501);
    assert_eq!(keeper.remove_old().await.unwrap(), 100);
    assert_eq!(keeper.remove_old().await.unwrap(), 0);
    let mut left: Vec<String> =
        long.list(Filter::All, 10).await.unwrap().into_iter().map(|entry| entry.key).collect();
    left.sort_unstable();
    assert_eq!(left, ["f", "i", "p"]);
    keeper.count().await.unwrap();
}

async fn items_can_be_found_and_decided_on(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&[(items[0].clone(), Outcome::Done)]).await.unwrap();
    let found = queue.find(items[0].id).await.unwrap().unwrap();
    assert_eq!((found.number, found.state, found.key.as_str()), (items[0].number, State::Done, "a"));
    assert_eq!(queue.find_number(items[1].number).await.unwrap().unwrap().state, State::InFlight);
    assert!(queue.find(Uuid::now_v7()).await.unwrap().is_none());
    assert_eq!(queue.retry(4711).await.unwrap(), Err(Unfit::Unknown));
    assert_eq!(queue.retry(items[0].number).await.unwrap(), Err(Unfit::Finished));
    assert_eq!(queue.skip(items[0].number).await.unwrap(), Err(Unfit::Finished));
    assert_eq!(queue.retry(items[1].number).await.unwrap(), Err(Unfit::NotFailed));
}

async fn a_decision_takes_an_item_from_its_holder(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    queue.skip(items[0].number).await.unwrap().unwrap();
    assert_eq!(queue.finish(&all(&items, &Outcome::Again("x".into()))).await.unwrap().stale, 1);
    assert_eq!(queue.find(items[0].id).await.unwrap().unwrap().state, State::Skipped);

    push(&db, &queue, &["b:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items, &Outcome::Failed("x".into()))).await.unwrap();
    queue.retry(items[0].number).await.unwrap().unwrap();
    // As if it were ours still.
    assert_eq!(queue.finish(&all(&items, &Outcome::Done)).await.unwrap().stale, 1);
    assert_eq!(claim(&queue).await[0].attempts, 1);
}

async fn a_decision_on_one_item_leaves_the_waits_and_leases_of_others(place: &SqlPlace) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_secs(60), Duration::from_secs(60));
    let queue = queue_on(db.clone(), Config { retry, ..config() });
    push(&db, &queue, &["a:1", "a:2", "b:1", "b:2", "b:3"]).await;
    let items = claim(&queue).await;
    // Whoever has the next one still has it.
    queue.skip(items[0].number).await.unwrap().unwrap();
    assert!(claim(&queue).await.is_empty());
    assert_eq!(queue.renew(&items[..2]).await.unwrap().0, 1);
    // The one before it still waits for its next attempt, and the one behind it for that.
    queue.finish(&all(&items[2..3], &Outcome::Again("bad luck".into()))).await.unwrap();
    queue.finish(&all(&items[3..], &Outcome::NotTried("not now".into()))).await.unwrap();
    queue.skip(items[3].number).await.unwrap().unwrap();
    while queue.claim(ProcessId::generate()).await.unwrap().behind > 0 {}
    let (first, last) =
        (queue.find(items[2].id).await.unwrap().unwrap(), queue.find(items[4].id).await.unwrap().unwrap());
    let soon = db.now().await.unwrap().after(Duration::from_secs(10));
    assert!(first.due > soon && last.due > soon, "{first:?} {last:?}");
    assert_eq!((first.attempts, last.attempts), (1, 0));
}

async fn it_is_told_who_has_an_item_and_since_when_it_is_what_it_is(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let outcomes = [
        (Outcome::Done, State::Done),
        (Outcome::Again("x".into()), State::Pending),
        (Outcome::NotTried("x".into()), State::Pending),
        (Outcome::Failed("x".into()), State::Failed),
    ];
    for (outcome, state) in outcomes {
        push(&db, &queue, &[&format!("{outcome:?}:1")]).await;
        let holder = ProcessId::generate();
        let items = queue.claim(holder).await.unwrap().items;
        let claimed = queue.find(items[0].id).await.unwrap().unwrap();
        assert_eq!((claimed.state, claimed.holder), (State::InFlight, Some(*holder.as_uuid())));
        // The lease ends in a minute.
        assert!(claimed.due > db.now().await.unwrap().after(Duration::from_secs(30)), "{claimed:?}");
        queue.finish(&all(&items, &outcome)).await.unwrap();
        let ended = queue.find(items[0].id).await.unwrap().unwrap();
        assert_eq!((ended.state, ended.holder), (state, None), "{outcome:?}");
        let now = db.now().await.unwrap();
        assert!(ended.due < now.after(Duration::from_secs(10)), "{outcome:?}: {ended:?}");
        if state == State::Pending {
            queue.skip(ended.number).await.unwrap().unwrap();
        }
    }
    // Skipped while somebody has it.
    push(&db, &queue, &["s:1"]).await;
    let items = claim(&queue).await;
    queue.skip(items[0].number).await.unwrap().unwrap();
    assert_eq!(queue.find(items[0].id).await.unwrap().unwrap().holder, None);

    // Given up since nobody said what came of it.
    let hasty = queue_on(db.clone(), Config { lease: Duration::from_millis(1), max_attempts: 1, ..config() });
    push(&db, &queue, &["g:1"]).await;
    let items = claim(&hasty).await;
    testkit::eventually("the lease has ended", PATIENCE, async || hasty.has_due().await.unwrap()).await;
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let since = db.now().await.unwrap();
    assert!(claim(&hasty).await.is_empty());
    let ended = hasty.find(items[0].id).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.holder), (State::Failed, None));
    assert!(ended.due >= since, "{ended:?}");
}

async fn what_is_kept_is_kept_from_when_it_was_done(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1"]).await;
    let mut tx = db.begin().await.unwrap();
    db::on!(tx, raw => { sqlx::query("UPDATE chores SET created_at = 0").execute(raw).await.unwrap(); });
    tx.commit().await.unwrap();
    let items = claim(&queue).await;
    queue.finish(&all(&items, &Outcome::Done)).await.unwrap();
    assert_eq!(Keeper::new(queue).remove_old().await.unwrap(), 0);
}

async fn what_was_done_can_be_done_again(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let worker = recorder.worker(&queue);
    push(&db, &queue, &["a:1", "a:2"]).await;
    worker.tick().await.unwrap();
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let since = db.now().await.unwrap();
    for n in 0..600 {
        push(&db, &queue, &[&format!("{}:{n}", n % 5)]).await;
    }
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(recorder.done().len(), 602);
    assert_eq!(queue.again_since(since).await.unwrap(), 600);
    while worker.tick().await.unwrap().claimed > 0 {}
    let done = recorder.done();
    assert_eq!(done.len(), 1202);
    // In the order of each key, once more.
    let of_key =
        |from: usize| done[from..][..600].iter().filter(|text| text.starts_with("3:")).collect::<Vec<_>>();
    assert_eq!(of_key(2), of_key(602));
    assert_eq!(queue.again_since(Timestamp::from_millis(i64::MAX)).await.unwrap(), 0);
}

/// Workers that do again at once what is sent back do not make it a circle.
async fn doing_again_ends_while_workers_keep_up(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { poll: Duration::from_millis(5), ..config() });
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    for n in 0..1_200 {
        push(&db, &queue, &[&format!("{n}:x")]).await;
    }
    let worker = recorder.worker(&queue);
    while worker.tick().await.unwrap().claimed > 0 {}
    let drain = runtime::Drain::new();
    let running = tokio::spawn({
        let drain = drain.clone();
        async move { worker.run(drain).await.unwrap() }
    });
    let again = tokio::time::timeout(PATIENCE, queue.again_since(Timestamp::from_millis(0)));
    assert_eq!(again.await.expect("it goes round in circles").unwrap(), 1_200);
    testkit::eventually("everything is done again", PATIENCE, async || recorder.done().len() == 2_400).await;
    drain.request();
    running.await.unwrap();
}

/// More items of a key than are sent back at once, a stop in between, workers that keep up, and items that are pushed meanwhile.
async fn doing_again_keeps_the_order_of_a_key_of_any_length(place: &SqlPlace) {
    const LONG: usize = 1_203;
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let worker = recorder.worker(&queue);
    let mut tx = db.begin().await.unwrap();
    for n in 0..LONG {
        push_in(&mut tx, &queue, &format!("long:{n}"));
        push_in(&mut tx, &queue, &format!("{n}:short"));
    }
    tx.commit().await.unwrap();
    while worker.tick().await.unwrap().claimed > 0 {}
    let before = recorder.done().len();
    assert_eq!(before, 2 * LONG);
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (since, until) = (Timestamp::from_millis(0), db.now().await.unwrap());
    // Stopped after the first step, as by a crash; the key goes on.
    let sent = queue.again_some_keys(since, until).await.unwrap().unwrap();
    assert!(sent > 0 && sent < 2 * LONG as u64, "{sent}");
    push(&db, &queue, &[&format!("long:{LONG}")]).await;
    for _ in 0..3 {
        worker.tick().await.unwrap();
    }
    push(&db, &queue, &[&format!("long:{}", LONG + 1)]).await;
    while worker.tick().await.unwrap().claimed > 0 {}
    // Continued.
    let mut rest = 0;
    while let Some(sent) = queue.again_some_keys(since, until).await.unwrap() {
        rest += sent;
        worker.tick().await.unwrap();
    }
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(sent + rest, 2 * LONG as u64, "each was sent back once");
    let done = recorder.done();
    let of_key: Vec<&String> = done[before..].iter().filter(|text| text.starts_with("long:")).collect();
    let expected: Vec<String> = (0..LONG + 2).map(|n| format!("long:{n}")).collect();
    assert_eq!(of_key, expected.iter().collect::<Vec<_>>());
    assert_eq!(done.len(), before + 2 * LONG + 2);
}

/// An item is pushed and done after the command has begun, and before the command gets to its key.
async fn doing_again_keeps_the_order_of_a_key_that_goes_on_before_its_turn(place: &SqlPlace) {
    const KEYS: usize = 600;
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let worker = recorder.worker(&queue);
    let mut tx = db.begin().await.unwrap();
    for n in 0..KEYS {
        push_in(&mut tx, &queue, &format!("{n}:x"));
    }
    tx.commit().await.unwrap();
    while worker.tick().await.unwrap().claimed > 0 {}
    push(&db, &queue, &["last:1"]).await;
    worker.tick().await.unwrap();
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (since, until) = (Timestamp::from_millis(0), db.now().await.unwrap());
    tokio::time::sleep(Duration::from_millis(5)).await;
    queue.again_some_keys(since, until).await.unwrap().unwrap();
    push(&db, &queue, &["last:2"]).await;
    while worker.tick().await.unwrap().claimed > 0 {}
    while queue.again_some_keys(since, until).await.unwrap().is_some() {}
    while worker.tick().await.unwrap().claimed > 0 {}
    let done = recorder.done();
    let of_key: Vec<&String> = done.iter().filter(|text| text.starts_with("last:")).collect();
    assert_eq!(of_key, ["last:1", "last:2", "last:1", "last:2"]);
    assert_eq!(done.len(), 2 * KEYS + 4, "each other item is done again once");
}

async fn doing_again_takes_items_in_flight_back(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let worker = recorder.worker(&queue);
    push(&db, &queue, &["a:1"]).await;
    worker.tick().await.unwrap();
    push(&db, &queue, &["a:2", "b:1"]).await;
    let in_flight = claim(&queue).await;
    assert_eq!(in_flight.len(), 2);
    push(&db, &queue, &["a:3"]).await;
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(queue.again_since(Timestamp::from_millis(0)).await.unwrap(), 1);
    // The worker that had both finishes late: the item of the reopened key is no longer its own.
    let finished = queue.finish(&all(&in_flight, &Outcome::Done)).await.unwrap();
    assert_eq!(finished.stale, 1);
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(recorder.done(), ["a:1", "a:1", "a:2", "a:3"]);
    let entry = queue.find(in_flight[0].id).await.unwrap().unwrap();
    assert_eq!((entry.state, entry.attempts), (State::Done, 1));
}

async fn what_is_to_be_done_again_begins_anew(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 1, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items, &Outcome::Done)).await.unwrap();
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(queue.again_since(Timestamp::from_millis(0)).await.unwrap(), 1);
    // Whoever had it is told that it is not theirs any more.
    assert_eq!(queue.finish(&all(&items, &Outcome::Failed("x".into()))).await.unwrap().stale, 1);
    let entry = queue.find(items[0].id).await.unwrap().unwrap();
    assert_eq!((entry.state, entry.attempts, entry.due), (State::Pending, 0, entry.created));
    assert_eq!(claim(&queue).await[0].attempts, 1);
}

async fn what_waits_for_an_operator_is_listed_in_the_order_of_waiting(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1", "b:2", "b:3", "c:1"]).await;
    let items = claim(&queue).await;
    let now_not = Outcome::NotTried("not now".into());
    queue.finish(&all(&items[2..4], &now_not)).await.unwrap();
    for at in [4, 1, 0] {
        queue.finish(&all(&items[at..=at], &Outcome::Failed("x".into()))).await.unwrap();
        // The store's clock counts in milliseconds.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    queue.skip(items[2].number).await.unwrap().unwrap();
    let blocked = queue.blocked_keys(2).await.unwrap();
    let blocked: Vec<(&str, u64)> = blocked.iter().map(|key| (key.key.as_str(), key.waiting)).collect();
    assert_eq!(blocked, [("c", 0), ("b", 1)]);
    let keys = async |filter, limit| {
        let entries = queue.list(filter, limit).await.unwrap();
        entries.iter().map(|entry| String::from_utf8(entry.payload.clone()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(keys(Filter::Failed, 2).await, ["c:1", "b:1"]);
    assert_eq!(keys(Filter::Skipped, 10).await, ["b:2"]);
    assert_eq!(keys(Filter::Open, 10).await, ["b:3"]);
    assert_eq!(keys(Filter::All, 2).await, ["c:1", "b:3"]);
}

//! Retention, and the operations of operators.

use base::Timestamp;
use work_queue::{DecisionError, Filter, RetentionCleaner, State};

use super::*;

testkit::on_all_stores!(
    only_old_finished_items_are_removed,
    items_can_be_found_and_decided_on,
    decision_takes_an_item_from_its_holder,
    decision_on_one_item_keeps_the_waits_and_leases_of_others,
    item_shows_its_holder_and_since_when_it_is_in_its_state,
    retention_starts_when_the_item_is_done,
    done_items_can_be_reopened,
    reopening_ends_while_workers_keep_up,
    reopening_keeps_the_order_of_a_long_key,
    reopening_keeps_the_order_of_a_key_that_continues_meanwhile,
    reopening_takes_back_items_in_flight,
    reopened_item_has_all_its_attempts,
    blocked_items_are_listed_longest_waiting_first,
    items_are_found_by_their_content_near_the_time_of_their_state,
);

async fn only_old_finished_items_are_removed(place: &TestDatabase) {
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
            "f" => Some((item, ItemOutcome::Failed("x".into()))),
            "s" => Some((item, ItemOutcome::Failed("y".into()))),
            "i" => None,
            _ => Some((item, ItemOutcome::Done)),
        };
        let outcomes: Vec<_> = items.into_iter().filter_map(outcome).collect();
        long.finish(&outcomes).await.unwrap();
    }
    push(&db, &long, &["p:pending"]).await;
    let skipped = long.blocked_keys(10).await.unwrap().into_iter().find(|key| key.key == "s").unwrap();
    long.skip(skipped.number).await.unwrap().unwrap();

    assert_eq!(RetentionCleaner::new(long.clone()).remove_old().await.unwrap(), 0);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let cleaner = RetentionCleaner::new(short);
    // In batches of 500 per state.
    assert_eq!(cleaner.remove_old().await.unwrap(), 501);
    assert_eq!(cleaner.remove_old().await.unwrap(), 100);
    assert_eq!(cleaner.remove_old().await.unwrap(), 0);
    let mut left: Vec<String> =
        long.list(Filter::All, 10).await.unwrap().into_iter().map(|view| view.key).collect();
    left.sort_unstable();
    assert_eq!(left, ["f", "i", "p"]);
    cleaner.count().await.unwrap();
}

async fn items_can_be_found_and_decided_on(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&[(items[0].clone(), ItemOutcome::Done)]).await.unwrap();
    let found = queue.find(items[0].id).await.unwrap().unwrap();
    assert_eq!((found.number, found.state, found.key.as_str()), (items[0].number, State::Done, "a"));
    assert_eq!(queue.find_by_number(items[1].number).await.unwrap().unwrap().state, State::InFlight);
    assert!(queue.find(Uuid::now_v7()).await.unwrap().is_none());
    assert_eq!(queue.retry(4711).await.unwrap(), Err(DecisionError::Unknown));
    assert_eq!(queue.retry(items[0].number).await.unwrap(), Err(DecisionError::Finished));
    assert_eq!(queue.skip(items[0].number).await.unwrap(), Err(DecisionError::Finished));
    assert_eq!(queue.retry(items[1].number).await.unwrap(), Err(DecisionError::NotFailed));
}

async fn decision_takes_an_item_from_its_holder(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    queue.skip(items[0].number).await.unwrap().unwrap();
    assert_eq!(queue.finish(&all(&items, &ItemOutcome::Retry("x".into()))).await.unwrap().stale, 1);
    assert_eq!(queue.find(items[0].id).await.unwrap().unwrap().state, State::Skipped);

    push(&db, &queue, &["b:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items, &ItemOutcome::Failed("x".into()))).await.unwrap();
    queue.retry(items[0].number).await.unwrap().unwrap();
    // With the old lease number.
    assert_eq!(queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap().stale, 1);
    assert_eq!(claim(&queue).await[0].attempts, 1);
}

async fn decision_on_one_item_keeps_the_waits_and_leases_of_others(place: &TestDatabase) {
    let db = open(place).await;
    let retry = Backoff::new(Duration::from_secs(60), Duration::from_secs(60));
    let queue = queue_on(db.clone(), Config { retry, ..config() });
    push(&db, &queue, &["a:1", "a:2", "b:1", "b:2", "b:3"]).await;
    let items = claim(&queue).await;
    // The next item keeps its holder.
    queue.skip(items[0].number).await.unwrap().unwrap();
    assert!(claim(&queue).await.is_empty());
    assert_eq!(queue.renew(&items[..2]).await.unwrap().0, 1);
    // The item before it still waits for its next attempt, and the item behind it waits for that one.
    queue.finish(&all(&items[2..3], &ItemOutcome::Retry("bad luck".into()))).await.unwrap();
    queue.finish(&all(&items[3..], &ItemOutcome::NotAttempted("not now".into()))).await.unwrap();
    queue.skip(items[3].number).await.unwrap().unwrap();
    while queue.claim(ProcessId::generate()).await.unwrap().waiting > 0 {}
    let (first, last) =
        (queue.find(items[2].id).await.unwrap().unwrap(), queue.find(items[4].id).await.unwrap().unwrap());
    let soon = db.now().await.unwrap().after(Duration::from_secs(10));
    assert!(first.due > soon && last.due > soon, "{first:?} {last:?}");
    assert_eq!((first.attempts, last.attempts), (1, 0));
}

async fn item_shows_its_holder_and_since_when_it_is_in_its_state(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let outcomes = [
        (ItemOutcome::Done, State::Done),
        (ItemOutcome::Retry("x".into()), State::Pending),
        (ItemOutcome::NotAttempted("x".into()), State::Pending),
        (ItemOutcome::Failed("x".into()), State::Failed),
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
    // Skipped while claimed.
    push(&db, &queue, &["s:1"]).await;
    let items = claim(&queue).await;
    queue.skip(items[0].number).await.unwrap().unwrap();
    assert_eq!(queue.find(items[0].id).await.unwrap().unwrap().holder, None);

    // Failed because its worker reported no outcome.
    let short_lease =
        queue_on(db.clone(), Config { lease: Duration::from_millis(1), max_attempts: 1, ..config() });
    push(&db, &queue, &["g:1"]).await;
    let items = claim(&short_lease).await;
    testkit::eventually("the lease has expired", PATIENCE, async || short_lease.has_due().await.unwrap())
        .await;
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let since = db.now().await.unwrap();
    assert!(claim(&short_lease).await.is_empty());
    let ended = short_lease.find(items[0].id).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.holder), (State::Failed, None));
    assert!(ended.due >= since, "{ended:?}");
}

async fn retention_starts_when_the_item_is_done(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1"]).await;
    let mut tx = db.begin().await.unwrap();
    db::on!(tx, raw => { sqlx::query("UPDATE chores SET created_at = 0").execute(raw).await.unwrap(); });
    tx.commit().await.unwrap();
    let items = claim(&queue).await;
    queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap();
    assert_eq!(RetentionCleaner::new(queue).remove_old().await.unwrap(), 0);
}

async fn done_items_can_be_reopened(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
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
    assert_eq!(queue.reopen_done_since(since).await.unwrap(), 600);
    while worker.tick().await.unwrap().claimed > 0 {}
    let done = recorder.done();
    assert_eq!(done.len(), 1202);
    // In the order of each key again.
    let of_key =
        |from: usize| done[from..][..600].iter().filter(|text| text.starts_with("3:")).collect::<Vec<_>>();
    assert_eq!(of_key(2), of_key(602));
    assert_eq!(queue.reopen_done_since(Timestamp::from_millis(i64::MAX)).await.unwrap(), 0);
}

/// Workers that finish the reopened items at once do not keep the command running forever.
async fn reopening_ends_while_workers_keep_up(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { poll: Duration::from_millis(5), ..config() });
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
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
    let reopening = tokio::time::timeout(PATIENCE, queue.reopen_done_since(Timestamp::from_millis(0)));
    assert_eq!(reopening.await.expect("it reopens items again and again").unwrap(), 1_200);
    testkit::eventually("everything is handled again", PATIENCE, async || recorder.done().len() == 2_400)
        .await;
    drain.request();
    running.await.unwrap();
}

/// A key with more items than one statement reopens, an interruption, workers that keep up, and pushes meanwhile.
async fn reopening_keeps_the_order_of_a_long_key(place: &TestDatabase) {
    const LONG: usize = 1_203;
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
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
    // Interrupted after the first step, as by a crash. The key continues.
    let reopened = queue.reopen_some_keys(since, until).await.unwrap().unwrap();
    assert!(reopened > 0 && reopened < 2 * LONG as u64, "{reopened}");
    push(&db, &queue, &[&format!("long:{LONG}")]).await;
    for _ in 0..3 {
        worker.tick().await.unwrap();
    }
    push(&db, &queue, &[&format!("long:{}", LONG + 1)]).await;
    while worker.tick().await.unwrap().claimed > 0 {}
    // Continued.
    let mut rest = 0;
    while let Some(more) = queue.reopen_some_keys(since, until).await.unwrap() {
        rest += more;
        worker.tick().await.unwrap();
    }
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(reopened + rest, 2 * LONG as u64, "each was reopened once");
    let done = recorder.done();
    let of_key: Vec<&String> = done[before..].iter().filter(|text| text.starts_with("long:")).collect();
    let expected: Vec<String> = (0..LONG + 2).map(|n| format!("long:{n}")).collect();
    assert_eq!(of_key, expected.iter().collect::<Vec<_>>());
    assert_eq!(done.len(), before + 2 * LONG + 2);
}

/// An item is pushed and done after the command has begun, and before it reaches the key.
async fn reopening_keeps_the_order_of_a_key_that_continues_meanwhile(place: &TestDatabase) {
    const KEYS: usize = 600;
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
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
    queue.reopen_some_keys(since, until).await.unwrap().unwrap();
    push(&db, &queue, &["last:2"]).await;
    while worker.tick().await.unwrap().claimed > 0 {}
    while queue.reopen_some_keys(since, until).await.unwrap().is_some() {}
    while worker.tick().await.unwrap().claimed > 0 {}
    let done = recorder.done();
    let of_key: Vec<&String> = done.iter().filter(|text| text.starts_with("last:")).collect();
    assert_eq!(of_key, ["last:1", "last:2", "last:1", "last:2"]);
    assert_eq!(done.len(), 2 * KEYS + 4, "every other item is handled once more");
}

async fn reopening_takes_back_items_in_flight(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let worker = recorder.worker(&queue);
    push(&db, &queue, &["a:1"]).await;
    worker.tick().await.unwrap();
    push(&db, &queue, &["a:2", "b:1"]).await;
    let in_flight = claim(&queue).await;
    assert_eq!(in_flight.len(), 2);
    push(&db, &queue, &["a:3"]).await;
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(queue.reopen_done_since(Timestamp::from_millis(0)).await.unwrap(), 1);
    // The worker that had claimed both finishes late. It has lost the item of the reopened key.
    let finished = queue.finish(&all(&in_flight, &ItemOutcome::Done)).await.unwrap();
    assert_eq!(finished.stale, 1);
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(recorder.done(), ["a:1", "a:1", "a:2", "a:3"]);
    let view = queue.find(in_flight[0].id).await.unwrap().unwrap();
    assert_eq!((view.state, view.attempts), (State::Done, 1));
}

async fn reopened_item_has_all_its_attempts(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { max_attempts: 1, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap();
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(queue.reopen_done_since(Timestamp::from_millis(0)).await.unwrap(), 1);
    // The outcome of the old holder is stale.
    assert_eq!(queue.finish(&all(&items, &ItemOutcome::Failed("x".into()))).await.unwrap().stale, 1);
    let view = queue.find(items[0].id).await.unwrap().unwrap();
    assert_eq!((view.state, view.attempts, view.due), (State::Pending, 0, view.created));
    assert_eq!(claim(&queue).await[0].attempts, 1);
}

async fn blocked_items_are_listed_longest_waiting_first(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1", "b:2", "b:3", "c:1"]).await;
    let items = claim(&queue).await;
    let not_now = ItemOutcome::NotAttempted("not now".into());
    queue.finish(&all(&items[2..4], &not_now)).await.unwrap();
    for at in [4, 1, 0] {
        queue.finish(&all(&items[at..=at], &ItemOutcome::Failed("x".into()))).await.unwrap();
        // The store's clock counts in milliseconds.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    queue.skip(items[2].number).await.unwrap().unwrap();
    let blocked = queue.blocked_keys(2).await.unwrap();
    let blocked: Vec<(&str, u64)> = blocked.iter().map(|key| (key.key.as_str(), key.waiting)).collect();
    assert_eq!(blocked, [("c", 0), ("b", 1)]);
    let keys = async |filter, limit| {
        let views = queue.list(filter, limit).await.unwrap();
        views.iter().map(|view| String::from_utf8(view.payload.clone()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(keys(Filter::Failed, 2).await, ["c:1", "b:1"]);
    assert_eq!(keys(Filter::Skipped, 10).await, ["b:2"]);
    assert_eq!(keys(Filter::Open, 10).await, ["b:3"]);
    assert_eq!(keys(Filter::All, 2).await, ["c:1", "b:3"]);
}

async fn items_are_found_by_their_content_near_the_time_of_their_state(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:one", "b:two", "c:three"]).await;
    let items = claim(&queue).await;
    let before = db.now().await.unwrap();
    queue.finish(&all(&items[..2], &ItemOutcome::Done)).await.unwrap();
    queue.finish(&all(&items[2..], &ItemOutcome::Failed("x".into()))).await.unwrap();
    let (earlier, later) = (Timestamp::from_millis(before.as_millis() - 60_000), before.after(PATIENCE));
    let find = async |filter, since, user, text: &str, limit| {
        let found = queue.find_containing(filter, (since, later), user, text.as_bytes(), limit).await;
        found.unwrap().map(|item| item.key)
    };
    assert_eq!(find(Filter::Done, earlier, Uuid::nil(), ":two", 10).await.as_deref(), Some("b"));
    assert_eq!(find(Filter::Failed, earlier, Uuid::nil(), ":three", 10).await.as_deref(), Some("c"));
    assert_eq!(find(Filter::Done, earlier, Uuid::nil(), ":three", 10).await, None, "another state");
    assert_eq!(find(Filter::Done, earlier, Uuid::nil(), ":TWO", 10).await, None, "bytes");
    assert_eq!(find(Filter::Done, earlier, Uuid::nil(), ":two", 1).await, None, "only one item is examined");
    assert_eq!(find(Filter::Done, later, Uuid::nil(), ":two", 10).await, None, "another time");
    assert_eq!(find(Filter::Done, earlier, Uuid::now_v7(), ":two", 10).await, None, "another user");
    assert_eq!(find(Filter::All, earlier, Uuid::nil(), ":two", 10).await, None);

    let ids = async |since, until, limit| queue.ids_done(since, until, limit).await.unwrap();
    assert_eq!(ids(earlier, later, 10).await, [items[1].id, items[0].id]);
    assert_eq!(ids(earlier, later, 1).await, [items[1].id]);
    assert!(ids(later, later, 10).await.is_empty());
}

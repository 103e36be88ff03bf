//! The order of a key, whatever fails and whoever works.

use std::collections::HashMap;

use testkit::Seed;
use work_queue::Filter;

use super::*;

testkit::on_all_stores!(
    items_of_one_key_come_together_and_in_order,
    an_item_waits_for_the_one_before_it,
    an_item_is_not_hidden_by_those_who_wait_for_it,
    items_behind_somebody_silent_make_way,
    items_behind_somebody_who_takes_long_make_way,
    a_failed_item_holds_up_its_key_and_no_other,
    what_a_worker_left_behind_one_that_is_given_up_waits_like_any_other,
    an_item_that_is_skipped_lets_nobody_pass_what_is_before_it,
    the_order_of_every_key_is_kept_by_many_workers_while_things_fail,
);

async fn items_of_one_key_come_together_and_in_order(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1", "a:2", "a:3", "b:2"]).await;
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let report = recorder.worker(&queue).tick().await.unwrap();
    assert_eq!((report.claimed, report.finished.done), (5, 5));
    // A round per place in a key.
    assert_eq!(recorder.done(), ["a:1", "b:1", "a:2", "b:2", "a:3"]);
}

async fn an_item_waits_for_the_one_before_it(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2", "b:1"]).await;
    let first = claim(&queue).await;
    assert_eq!(texts(&first), ["a:1"]);
    // a:2 is due, but not its turn. It stays where it is, for whoever has a:1 to go on with.
    let second = queue.claim(ProcessId::generate()).await.unwrap();
    assert_eq!((second.items.len(), second.behind), (0, 1));
    assert!(second.more, "b:1 is hidden behind it");
    queue.finish(&all(&first, &Outcome::Done)).await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:2"]);
    assert_eq!(texts(&claim(&queue).await), ["b:1"]);
}

/// The first item of a key has to wait, and there are more than a batch of those who wait for it.
async fn an_item_is_not_hidden_by_those_who_wait_for_it(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 2, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let first = claim(&queue).await;
    push(&db, &queue, &["a:2", "a:3", "a:4", "a:5", "b:1"]).await;
    queue.finish(&all(&first, &Outcome::Again("bad luck".into()))).await.unwrap();
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let worker = recorder.worker(&queue);
    testkit::eventually("everything is done", PATIENCE, async || {
        worker.tick().await.unwrap();
        recorder.done().len() == 6
    })
    .await;
    let of_a: Vec<String> = recorder.done().into_iter().filter(|text| text.starts_with('a')).collect();
    assert_eq!(of_a, ["a:1", "a:2", "a:3", "a:4", "a:5"]);
}

/// Whoever has claimed the first item of a key says nothing any more: others are not hidden by what is behind it.
async fn items_behind_somebody_silent_make_way(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3", "b:1"]).await;
    assert_eq!(texts(&claim(&queue).await), ["a:1"]);
    assert!(claim(&queue).await.is_empty());
    // Seconds later, and long before the lease ends.
    assert_eq!(texts(&claim_something(&queue).await), ["b:1"]);
}

/// The same behind somebody who is alive, says so often, and does not get done.
async fn items_behind_somebody_who_takes_long_make_way(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 1, lease: Duration::from_secs(3), ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3", "b:1"]).await;
    let worker = Worker::new(queue.clone(), Never, ProcessId::generate());
    let working = tokio::spawn(async move { worker.tick().await.map(drop) });
    testkit::eventually("it is claimed", PATIENCE, async || {
        queue.list(Filter::Open, 10).await.unwrap().iter().any(|entry| entry.holder.is_some())
    })
    .await;
    assert_eq!(texts(&claim_something(&queue).await), ["b:1"]);
    working.abort();
}

struct Never;

impl Handler for Never {
    async fn handle(&self, _: &[Item]) -> Vec<Outcome> {
        std::future::pending().await
    }
}

async fn a_failed_item_holds_up_its_key_and_no_other(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:bad", "a:2", "b:1", "a:3", "c:bad", "c:2"]).await;
    let recorder = Recorder::new(|text: &str| {
        if text.ends_with("bad") { Outcome::Failed("it is bad".into()) } else { Outcome::Done }
    });
    let worker = recorder.worker(&queue);
    let report = worker.tick().await.unwrap();
    assert_eq!((report.finished.done, report.finished.failed, report.finished.not_tried), (1, 2, 3));
    push(&db, &queue, &["a:4", "b:2"]).await;
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(recorder.done(), ["b:1", "b:2"]);

    let blocked = queue.blocked_keys(10).await.unwrap();
    let mut found: Vec<(&str, u64)> = blocked.iter().map(|key| (key.key.as_str(), key.waiting)).collect();
    found.sort_unstable();
    assert_eq!(found, [("a", 3), ("c", 1)]);
    assert_eq!(blocked[0].cause.as_deref(), Some("it is bad"));

    // Skipped: the key goes on at once. Tried again: it fails again, and its key still waits.
    let number = |key: &str| blocked.iter().find(|blocked| blocked.key == key).unwrap().number;
    queue.skip(number("a")).await.unwrap().unwrap();
    queue.retry(number("c")).await.unwrap().unwrap();
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(recorder.done()[2..], ["a:2", "a:3", "a:4"]);
    assert_eq!(queue.blocked_keys(10).await.unwrap().len(), 1);
    let failed = &queue.list(Filter::Failed, 10).await.unwrap()[0];
    assert_eq!((failed.key.as_str(), failed.attempts), ("c", 1));
}

/// Pushers take turns per key, as they do under a lock; workers claim, fail, come too late and are given up.
async fn the_order_of_every_key_is_kept_by_many_workers_while_things_fail(place: &SqlPlace) {
    const KEYS: usize = 10;
    const EACH: usize = 60;
    let db = open(place).await;
    let config = Config {
        lease: Duration::from_secs(2),
        batch: 8,
        max_attempts: 1000,
        retry: Backoff::new(Duration::from_millis(1), Duration::from_millis(5)),
        ..config()
    };
    let queue = queue_on(db.clone(), config);
    let choices = Arc::new(Mutex::new(Seed::new().choices(0)));
    let recorder = Recorder::new(move |_: &str| match choices.lock().unwrap().u32(..10) {
        0 => Outcome::Again("bad luck".into()),
        1 => Outcome::NotTried("away".into()),
        _ => Outcome::Done,
    });
    let drain = runtime::Drain::new();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (worker, drain) = (recorder.worker(&queue), drain.clone());
            tokio::spawn(async move { worker.run(drain).await.unwrap() })
        })
        .collect();
    // One that claims and dies, again and again.
    let dying = tokio::spawn({
        let (queue, drain) = (queue.clone(), drain.clone());
        async move {
            while drain.sleep(Duration::from_millis(200)).await {
                let _ = queue.claim(ProcessId::generate()).await;
            }
        }
    });
    let push_key = async |key: usize| {
        for n in 0..EACH {
            push(&db, &queue, &[&format!("{key}:{n}")]).await;
        }
    };
    futures::future::join_all((0..KEYS).map(push_key)).await;
    dying.abort();
    testkit::eventually("everything is done", PATIENCE * 2, async || {
        let done = queue.list(Filter::Done, 10_000).await.unwrap().len();
        if done == KEYS * EACH { Ok(()) } else { Err(format!("{done} are done")) }
    })
    .await;
    drain.request();
    for worker in workers {
        worker.await.unwrap();
    }
    let mut last: HashMap<String, usize> = HashMap::new();
    for text in recorder.done() {
        let (key, n) = text.split_once(':').unwrap();
        let n: usize = n.parse().unwrap();
        let expected = last.get(key).map_or(0, |last| last + 1);
        assert_eq!(n, expected, "key {key}: {text} was done out of turn");
        last.insert(key.to_owned(), n);
    }
}

/// A worker died with both of them, and the first has used up its attempts.
async fn what_a_worker_left_behind_one_that_is_given_up_waits_like_any_other(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let hasty =
        queue_on(db.clone(), Config { lease: Duration::from_millis(100), max_attempts: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2"]).await;
    let items = claim(&hasty).await;
    assert_eq!(texts(&items), ["a:1", "a:2"]);
    let second = testkit::eventually("the second waits for an operator, too", PATIENCE, async || {
        assert!(claim(&hasty).await.is_empty());
        let second = queue.find(items[1].id).await.unwrap().unwrap();
        let (soon, late) = (Duration::from_secs(30), Duration::from_secs(90));
        let now = db.now().await.unwrap();
        let waits = second.due > now.after(soon) && second.due < now.after(late);
        if waits { Ok(second) } else { Err(format!("{second:?}")) }
    })
    .await;
    assert_eq!((second.state, second.holder), (work_queue::State::Pending, None));
    queue.skip(items[0].number).await.unwrap().unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:2"]);
}

/// Operators may skip any item, also one that waits for another.
async fn an_item_that_is_skipped_lets_nobody_pass_what_is_before_it(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "a:2", "a:3", "b:1", "b:2", "b:3", "b:4"]).await;
    let items = claim(&queue).await;
    let skip = async |text: &str| {
        let number = items.iter().find(|item| item.payload == text.as_bytes()).unwrap().number;
        queue.skip(number).await.unwrap().unwrap();
    };
    let outcome = |item: &Item| match text(item).as_str() {
        "a:1" => Outcome::Failed("it is bad".into()),
        _ => Outcome::NotTried("not now".into()),
    };
    let outcomes: Vec<_> = items.iter().map(|item| (item.clone(), outcome(item))).collect();
    queue.finish(&outcomes).await.unwrap();
    skip("a:2").await;
    skip("b:2").await;
    skip("b:3").await;
    // Of a nothing, since its first has failed. Of b the first, and with it the one behind those that are skipped.
    assert_eq!(texts(&claim(&queue).await), ["b:1", "b:4"]);
    skip("a:1").await;
    assert_eq!(texts(&claim(&queue).await), ["a:3"]);
}

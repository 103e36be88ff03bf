//! The order of each key, despite failures and concurrent workers.

use std::collections::HashMap;

use testkit::Seed;
use work_queue::Filter;

use super::*;

testkit::on_all_stores!(
    items_of_one_key_are_claimed_together_and_handled_in_order,
    item_waits_for_its_predecessor,
    item_is_not_hidden_by_its_followers,
    followers_of_a_silent_worker_do_not_hide_other_keys,
    followers_of_a_slow_worker_do_not_hide_other_keys,
    failed_item_blocks_only_its_key,
    follower_of_an_item_out_of_attempts_is_blocked,
    skipped_item_lets_no_follower_overtake_its_predecessor,
    many_workers_keep_the_order_of_every_key_despite_failures,
);

async fn items_of_one_key_are_claimed_together_and_handled_in_order(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1", "a:2", "a:3", "b:2"]).await;
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let report = recorder.worker(&queue).tick().await.unwrap();
    assert_eq!((report.claimed, report.finished.done), (5, 5));
    // One round per position within a key.
    assert_eq!(recorder.done(), ["a:1", "b:1", "a:2", "b:2", "a:3"]);
}

async fn item_waits_for_its_predecessor(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2", "b:1"]).await;
    let first = claim(&queue).await;
    assert_eq!(texts(&first), ["a:1"]);
    // a:2 is due but must wait. It is not deferred, so the worker of a:1 can continue with it.
    let second = queue.claim(ProcessId::generate()).await.unwrap();
    assert_eq!((second.items.len(), second.waiting), (0, 1));
    assert!(second.has_more, "b:1 is hidden behind it");
    queue.finish(&all(&first, &ItemOutcome::Done)).await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:2"]);
    assert_eq!(texts(&claim(&queue).await), ["b:1"]);
}

/// The first item of a key waits for its retry, and more than a batch of items wait behind it.
async fn item_is_not_hidden_by_its_followers(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 2, ..config() });
    push(&db, &queue, &["a:1"]).await;
    let first = claim(&queue).await;
    push(&db, &queue, &["a:2", "a:3", "a:4", "a:5", "b:1"]).await;
    queue.finish(&all(&first, &ItemOutcome::Retry("bad luck".into()))).await.unwrap();
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let worker = recorder.worker(&queue);
    testkit::eventually("everything is done", PATIENCE, async || {
        worker.tick().await.unwrap();
        recorder.done().len() == 6
    })
    .await;
    let of_a: Vec<String> = recorder.done().into_iter().filter(|text| text.starts_with('a')).collect();
    assert_eq!(of_a, ["a:1", "a:2", "a:3", "a:4", "a:5"]);
}

/// The worker of the first item is silent. The items behind it do not hide other keys.
async fn followers_of_a_silent_worker_do_not_hide_other_keys(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3", "b:1"]).await;
    assert_eq!(texts(&claim(&queue).await), ["a:1"]);
    assert!(claim(&queue).await.is_empty());
    // Seconds later, long before the lease expires.
    assert_eq!(texts(&claim_something(&queue).await), ["b:1"]);
}

/// The same behind a worker that renews its lease often but does not finish.
async fn followers_of_a_slow_worker_do_not_hide_other_keys(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { batch: 1, lease: Duration::from_secs(3), ..config() });
    push(&db, &queue, &["a:1", "a:2", "a:3", "b:1"]).await;
    let worker = Worker::new(queue.clone(), Never, ProcessId::generate());
    let working = tokio::spawn(async move { worker.tick().await.map(drop) });
    testkit::eventually("it is claimed", PATIENCE, async || {
        queue.list(Filter::Open, 10).await.unwrap().iter().any(|view| view.holder.is_some())
    })
    .await;
    assert_eq!(texts(&claim_something(&queue).await), ["b:1"]);
    working.abort();
}

struct Never;

impl Handler for Never {
    async fn handle(&self, _: &[Item]) -> Vec<ItemOutcome> {
        std::future::pending().await
    }
}

async fn failed_item_blocks_only_its_key(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:bad", "a:2", "b:1", "a:3", "c:bad", "c:2"]).await;
    let recorder = Recorder::new(|text: &str| {
        if text.ends_with("bad") { ItemOutcome::Failed("it is bad".into()) } else { ItemOutcome::Done }
    });
    let worker = recorder.worker(&queue);
    let report = worker.tick().await.unwrap();
    assert_eq!((report.finished.done, report.finished.failed, report.finished.not_attempted), (1, 2, 3));
    push(&db, &queue, &["a:4", "b:2"]).await;
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(recorder.done(), ["b:1", "b:2"]);

    let blocked = queue.blocked_keys(10).await.unwrap();
    let mut found: Vec<(&str, u64)> = blocked.iter().map(|key| (key.key.as_str(), key.waiting)).collect();
    found.sort_unstable();
    assert_eq!(found, [("a", 3), ("c", 1)]);
    assert_eq!(blocked[0].cause.as_deref(), Some("it is bad"));

    // A skipped item unblocks its key at once. A retried item fails again, and its key still waits.
    let number = |key: &str| blocked.iter().find(|blocked| blocked.key == key).unwrap().number;
    queue.skip(number("a")).await.unwrap().unwrap();
    queue.retry(number("c")).await.unwrap().unwrap();
    while worker.tick().await.unwrap().claimed > 0 {}
    assert_eq!(recorder.done()[2..], ["a:2", "a:3", "a:4"]);
    assert_eq!(queue.blocked_keys(10).await.unwrap().len(), 1);
    let failed = &queue.list(Filter::Failed, 10).await.unwrap()[0];
    assert_eq!((failed.key.as_str(), failed.attempts), ("c", 1));
}

/// Pushes of one key exclude each other, as under a lock. Workers claim, fail, come too late and die.
async fn many_workers_keep_the_order_of_every_key_despite_failures(place: &TestDatabase) {
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
    let random = Arc::new(Mutex::new(Seed::new().choices(0)));
    let recorder = Recorder::new(move |_: &str| match random.lock().unwrap().u32(..10) {
        0 => ItemOutcome::Retry("bad luck".into()),
        1 => ItemOutcome::NotAttempted("unreachable".into()),
        _ => ItemOutcome::Done,
    });
    let drain = runtime::Drain::new();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (worker, drain) = (recorder.worker(&queue), drain.clone());
            tokio::spawn(async move { worker.run(drain).await.unwrap() })
        })
        .collect();
    // Workers that claim and die.
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
        assert_eq!(n, expected, "key {key}: {text} was handled out of order");
        last.insert(key.to_owned(), n);
    }
}

/// A worker died with both items, and the first has used up its attempts.
async fn follower_of_an_item_out_of_attempts_is_blocked(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    let short_lease =
        queue_on(db.clone(), Config { lease: Duration::from_millis(100), max_attempts: 1, ..config() });
    push(&db, &queue, &["a:1", "a:2"]).await;
    let items = claim(&short_lease).await;
    assert_eq!(texts(&items), ["a:1", "a:2"]);
    let second = testkit::eventually("the second waits for an operator too", PATIENCE, async || {
        assert!(claim(&short_lease).await.is_empty());
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

/// Operators may skip any item, even one that waits for another.
async fn skipped_item_lets_no_follower_overtake_its_predecessor(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "a:2", "a:3", "b:1", "b:2", "b:3", "b:4"]).await;
    let items = claim(&queue).await;
    let skip = async |text: &str| {
        let number = items.iter().find(|item| item.payload == text.as_bytes()).unwrap().number;
        queue.skip(number).await.unwrap().unwrap();
    };
    let outcome = |item: &Item| match text(item).as_str() {
        "a:1" => ItemOutcome::Failed("it is bad".into()),
        _ => ItemOutcome::NotAttempted("not now".into()),
    };
    let outcomes: Vec<_> = items.iter().map(|item| (item.clone(), outcome(item))).collect();
    queue.finish(&outcomes).await.unwrap();
    skip("a:2").await;
    skip("b:2").await;
    skip("b:3").await;
    // Nothing of a, whose first item has failed. The first of b, with the one behind the skipped items.
    assert_eq!(texts(&claim(&queue).await), ["b:1", "b:4"]);
    skip("a:1").await;
    assert_eq!(texts(&claim(&queue).await), ["a:3"]);
}

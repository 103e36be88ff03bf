//! Bulk decisions on failed items, and the items that waited behind them.

use base::Timestamp;
use work_queue::{Decision, FailedFilter, Filter, State};

use super::*;

testkit::on_all_stores!(
    failed_items_are_filtered_by_cause_time_and_key,
    skipping_many_items_unblocks_their_keys,
    followers_of_hundreds_of_failed_items_follow_at_once,
    followers_of_one_failed_item_follow_at_once,
);

/// Fails each item with its value as the cause.
async fn fail_each(db: &Db, queue: &WorkQueue, items: &[&str]) {
    push(db, queue, items).await;
    let claimed = claim(queue).await;
    let outcome = |item: &Item| ItemOutcome::Failed(format!("too {}", text(item).split_once(':').unwrap().1));
    let outcomes: Vec<_> = claimed.iter().map(|item| (item.clone(), outcome(item))).collect();
    queue.finish(&outcomes).await.unwrap();
}

async fn failed_items_are_filtered_by_cause_time_and_key(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    fail_each(&db, &queue, &["a:large", "b:large", "c:odd"]).await;
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let later = db.now().await.unwrap();
    fail_each(&db, &queue, &["d:large"]).await;
    push(&db, &queue, &["e:large"]).await;
    let cause = |text: &str| FailedFilter { cause: Some(text.to_owned()), ..FailedFilter::default() };
    let earlier = Timestamp::from_millis(later.as_millis() - 1);
    for (filter, expected) in [
        (FailedFilter::default(), 4),
        (cause("large"), 3),
        (cause("LARGE"), 0),
        (cause("%"), 0),
        (FailedFilter { key: Some("c".to_owned()), ..FailedFilter::default() }, 1),
        (FailedFilter { key: Some("c".to_owned()), ..cause("large") }, 0),
        (FailedFilter { since: Some(later), ..FailedFilter::default() }, 1),
        (FailedFilter { until: Some(earlier), ..cause("large") }, 2),
        (FailedFilter { since: Some(later), until: Some(earlier), ..FailedFilter::default() }, 0),
    ] {
        assert_eq!(queue.count_failed(&filter).await.unwrap(), expected, "{filter:?}");
    }
    // Counting changes nothing.
    assert_eq!(queue.list(Filter::Failed, 10).await.unwrap().len(), 4);

    let chosen = FailedFilter { until: Some(earlier), ..cause("large") };
    assert_eq!(queue.decide_failed(&chosen, Decision::Retry).await.unwrap(), 2);
    let mut claimed = texts(&claim(&queue).await);
    claimed.sort_unstable();
    assert_eq!(claimed, ["a:large", "b:large", "e:large"]);
    assert_eq!(queue.count_failed(&FailedFilter::default()).await.unwrap(), 2);
    assert_eq!(queue.decide_failed(&cause("no such cause"), Decision::Skip).await.unwrap(), 0);
}

async fn skipping_many_items_unblocks_their_keys(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    fail_each(&db, &queue, &["a:1", "b:1"]).await;
    push(&db, &queue, &["a:2", "b:2", "a:3"]).await;
    assert!(claim(&queue).await.is_empty(), "they are deferred");
    assert_eq!(queue.decide_failed(&FailedFilter::default(), Decision::Skip).await.unwrap(), 2);
    assert_eq!(texts(&claim(&queue).await), ["a:2", "b:2", "a:3"]);
    let skipped = queue.list(Filter::Skipped, 10).await.unwrap();
    assert!(skipped.len() == 2 && skipped.iter().all(|view| view.state == State::Skipped), "{skipped:?}");
}

/// Fails the first item of each key, and lets a claim defer its followers.
async fn block_keys(db: &Db, queue: &WorkQueue, keys: usize, followers: usize) {
    let push_all = async |n: usize| {
        let mut tx = db.begin().await.unwrap();
        for key in 0..keys {
            push_in(&mut tx, queue, &format!("{key}:{n}"));
        }
        tx.commit().await.unwrap();
    };
    push_all(0).await;
    loop {
        let items = claim(queue).await;
        if items.is_empty() {
            break;
        }
        queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await.unwrap();
    }
    for n in 1..=followers {
        push_all(n).await;
    }
    while queue.has_due().await.unwrap() {
        assert!(claim(queue).await.is_empty());
    }
}

/// Handles `count` items and asserts that no claim defers one.
async fn handle_all(queue: &WorkQueue, count: usize) -> Vec<String> {
    let recorder = Recorder::new(|_: &str| ItemOutcome::Done);
    let worker = recorder.worker(queue);
    while recorder.done().len() < count {
        let report = worker.tick().await.unwrap();
        let left = count - recorder.done().len();
        assert!(report.claimed == 100 || left == 0, "{left} are left and were deferred: {report:?}");
        assert_eq!(report.finished.done, report.claimed);
    }
    recorder.done()
}

async fn followers_of_hundreds_of_failed_items_follow_at_once(place: &TestDatabase) {
    const KEYS: usize = 600;
    const FOLLOWERS: usize = 4;
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    block_keys(&db, &queue, KEYS, FOLLOWERS).await;
    assert_eq!(queue.decide_failed(&FailedFilter::default(), Decision::Retry).await.unwrap(), KEYS as u64);
    let done = handle_all(&queue, KEYS * (FOLLOWERS + 1)).await;
    for key in [0, 1, KEYS / 2, KEYS - 1] {
        let prefix = format!("{key}:");
        let of_key: Vec<&String> = done.iter().filter(|text| text.starts_with(&prefix)).collect();
        assert_eq!(
            of_key,
            ["0", "1", "2", "3", "4"].map(|n| format!("{prefix}{n}")).iter().collect::<Vec<_>>()
        );
    }
}

async fn followers_of_one_failed_item_follow_at_once(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    block_keys(&db, &queue, 1, 250).await;
    let failed = queue.list(Filter::Failed, 1).await.unwrap()[0].number;
    queue.retry(failed).await.unwrap().unwrap();
    let done = handle_all(&queue, 251).await;
    assert_eq!(done, (0..=250).map(|n| format!("0:{n}")).collect::<Vec<_>>());
}

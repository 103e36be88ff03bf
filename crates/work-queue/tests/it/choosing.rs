//! Decisions on many failed items at once, and what waited behind them.

use base::Timestamp;
use work_queue::{Choice, Decision, Filter, State};

use super::*;

testkit::on_all_stores!(
    failed_items_are_chosen_by_cause_time_and_key,
    skipping_many_lets_their_keys_go_on,
    followers_of_hundreds_of_failed_items_follow_at_once,
    followers_of_one_failed_item_follow_at_once,
);

/// Fails each item with its value as the cause.
async fn fail_each(db: &Db, queue: &Queue, items: &[&str]) {
    push(db, queue, items).await;
    let claimed = claim(queue).await;
    let outcome = |item: &Item| Outcome::Failed(format!("too {}", text(item).split_once(':').unwrap().1));
    let outcomes: Vec<_> = claimed.iter().map(|item| (item.clone(), outcome(item))).collect();
    queue.finish(&outcomes).await.unwrap();
}

async fn failed_items_are_chosen_by_cause_time_and_key(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    fail_each(&db, &queue, &["a:large", "b:large", "c:odd"]).await;
    // The store's clock counts in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let later = db.now().await.unwrap();
    fail_each(&db, &queue, &["d:large"]).await;
    push(&db, &queue, &["e:large"]).await;
    let cause = |text: &str| Choice { cause: Some(text.to_owned()), ..Choice::default() };
    let earlier = Timestamp::from_millis(later.as_millis() - 1);
    for (choice, expected) in [
        (Choice::default(), 4),
        (cause("large"), 3),
        (cause("LARGE"), 0),
        (cause("%"), 0),
        (Choice { key: Some("c".to_owned()), ..Choice::default() }, 1),
        (Choice { key: Some("c".to_owned()), ..cause("large") }, 0),
        (Choice { since: Some(later), ..Choice::default() }, 1),
        (Choice { until: Some(earlier), ..cause("large") }, 2),
        (Choice { since: Some(later), until: Some(earlier), ..Choice::default() }, 0),
    ] {
        assert_eq!(queue.count_failed(&choice).await.unwrap(), expected, "{choice:?}");
    }
    // Nothing has changed by counting.
    assert_eq!(queue.list(Filter::Failed, 10).await.unwrap().len(), 4);

    let chosen = Choice { until: Some(earlier), ..cause("large") };
    assert_eq!(queue.decide_failed(&chosen, Decision::Retry).await.unwrap(), 2);
    let mut claimed = texts(&claim(&queue).await);
    claimed.sort_unstable();
    assert_eq!(claimed, ["a:large", "b:large", "e:large"]);
    assert_eq!(queue.count_failed(&Choice::default()).await.unwrap(), 2);
    assert_eq!(queue.decide_failed(&cause("nothing such"), Decision::Skip).await.unwrap(), 0);
}

async fn skipping_many_lets_their_keys_go_on(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    fail_each(&db, &queue, &["a:1", "b:1"]).await;
    push(&db, &queue, &["a:2", "b:2", "a:3"]).await;
    assert!(claim(&queue).await.is_empty(), "they are put off");
    assert_eq!(queue.decide_failed(&Choice::default(), Decision::Skip).await.unwrap(), 2);
    assert_eq!(texts(&claim(&queue).await), ["a:2", "b:2", "a:3"]);
    let skipped = queue.list(Filter::Skipped, 10).await.unwrap();
    assert!(skipped.len() == 2 && skipped.iter().all(|entry| entry.state == State::Skipped), "{skipped:?}");
}

/// Fails the first item of each key, and has its followers put off behind it.
async fn blocked(db: &Db, queue: &Queue, keys: usize, followers: usize) {
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
        queue.finish(&all(&items, &Outcome::Failed("bad".into()))).await.unwrap();
    }
    for n in 1..=followers {
        push_all(n).await;
    }
    while queue.has_due().await.unwrap() {
        assert!(claim(queue).await.is_empty());
    }
}

/// No claim is spent on items that have to wait, and no time either.
async fn all_follow(queue: &Queue, count: usize) -> Vec<String> {
    let recorder = Recorder::new(|_: &str| Outcome::Done);
    let worker = recorder.worker(queue);
    while recorder.done().len() < count {
        let report = worker.tick().await.unwrap();
        let left = count - recorder.done().len();
        assert!(report.claimed == 100 || left == 0, "{left} are left and were put off: {report:?}");
        assert_eq!(report.finished.done, report.claimed);
    }
    recorder.done()
}

async fn followers_of_hundreds_of_failed_items_follow_at_once(place: &SqlPlace) {
    const KEYS: usize = 600;
    const FOLLOWERS: usize = 4;
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    blocked(&db, &queue, KEYS, FOLLOWERS).await;
    assert_eq!(queue.decide_failed(&Choice::default(), Decision::Retry).await.unwrap(), KEYS as u64);
    let done = all_follow(&queue, KEYS * (FOLLOWERS + 1)).await;
    for key in [0, 1, KEYS / 2, KEYS - 1] {
        let prefix = format!("{key}:");
        let of_key: Vec<&String> = done.iter().filter(|text| text.starts_with(&prefix)).collect();
        assert_eq!(
            of_key,
            ["0", "1", "2", "3", "4"].map(|n| format!("{prefix}{n}")).iter().collect::<Vec<_>>()
        );
    }
}

async fn followers_of_one_failed_item_follow_at_once(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    blocked(&db, &queue, 1, 250).await;
    let failed = queue.list(Filter::Failed, 1).await.unwrap()[0].number;
    queue.retry(failed).await.unwrap().unwrap();
    let done = all_follow(&queue, 251).await;
    assert_eq!(done, (0..=250).map(|n| format!("0:{n}")).collect::<Vec<_>>());
}

//! Saved progress of long work.

use work_queue::State;

use super::*;

testkit::on_all_stores!(
    next_worker_gets_the_saved_payload,
    saving_renews_the_lease,
    worker_that_lost_the_item_cannot_save,
    lease_renewal_does_not_block_a_handler_in_a_transaction,
);

async fn save(db: &Db, queue: &WorkQueue, item: &Item, payload: &[u8]) -> bool {
    let mut tx = db.begin().await.unwrap();
    let saved = queue.save(&mut tx, item, payload).await.unwrap();
    tx.commit().await.unwrap();
    saved
}

async fn next_worker_gets_the_saved_payload(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let mut tx = db.begin().await.unwrap();
    assert!(queue.save(&mut tx, &items[0], b"a:wrong").await.unwrap());
    tx.rollback().await.unwrap();
    // Saving the same payload twice is allowed.
    for _ in 0..2 {
        assert!(save(&db, &queue, &items[1], b"b:2").await);
    }
    queue.finish(&all(&items, &ItemOutcome::NotAttempted("x".into()))).await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:1", "b:2"]);
}

async fn saving_renews_the_lease(place: &TestDatabase) {
    let db = open(place).await;
    let short = queue_on(db.clone(), Config { lease: Duration::from_millis(500), ..config() });
    let long = queue_on(db.clone(), config());
    push(&db, &short, &["a:1", "b:1"]).await;
    let items = claim(&short).await;
    assert!(save(&db, &long, &items[0], b"a:2").await);
    assert_eq!(texts(&claim_something(&short).await), ["b:1"]);
    assert!(claim(&short).await.is_empty());
    assert_eq!(short.finish(&all(&items[..1], &ItemOutcome::Done)).await.unwrap().done, 1);
}

async fn worker_that_lost_the_item_cannot_save(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(100), ..config() });
    push(&db, &queue, &["a:1"]).await;
    let first = claim(&queue).await;
    let second = claim_something(&queue).await;
    assert!(!save(&db, &queue, &first[0], b"a:2").await);
    queue.finish(&all(&second, &ItemOutcome::Done)).await.unwrap();
    assert!(!save(&db, &queue, &second[0], b"a:2").await);
    let view = queue.find(first[0].id).await.unwrap().unwrap();
    assert_eq!((view.state, view.payload.as_slice()), (State::Done, b"a:1".as_slice()));
}

/// Saves, and commits only after a delay.
struct Slow {
    db: Db,
    queue: WorkQueue,
    delay: Duration,
}

impl Handler for Slow {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let mut tx = self.db.begin().await.unwrap();
        for item in items {
            assert!(self.queue.save(&mut tx, item, b"a:2").await.unwrap());
        }
        tokio::time::sleep(self.delay).await;
        tx.commit().await.unwrap();
        vec![ItemOutcome::Done; items.len()]
    }
}

/// The renewal of the lease has to wait for the handler's transaction.
async fn lease_renewal_does_not_block_a_handler_in_a_transaction(place: &TestDatabase) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(1_500), ..config() });
    push(&db, &queue, &["a:1"]).await;
    let handler = Slow { db: db.clone(), queue: queue.clone(), delay: Duration::from_millis(1_000) };
    let worker = Worker::new(queue.clone(), handler, ProcessId::generate());
    let began = std::time::Instant::now();
    let report = worker.tick().await.unwrap();
    // Waiting for a row lock, or for SQLite's one writer, takes seconds.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!((report.finished.done, report.finished.stale), (1, 0));
    let payload = queue.list(work_queue::Filter::Done, 1).await.unwrap()[0].payload.clone();
    assert_eq!(payload, b"a:2");
}

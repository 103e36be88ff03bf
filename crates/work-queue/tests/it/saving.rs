//! How far somebody got who takes long.

use work_queue::State;

use super::*;

testkit::on_all_stores!(
    what_was_saved_is_there_for_the_next_one,
    to_save_makes_the_lease_last,
    what_is_lost_cannot_be_saved,
    a_handler_in_a_transaction_is_not_held_up_by_its_own_lease,
);

async fn save(db: &Db, queue: &Queue, item: &Item, payload: &[u8]) -> bool {
    let mut tx = db.begin().await.unwrap();
    let saved = queue.save(&mut tx, item, payload).await.unwrap();
    tx.commit().await.unwrap();
    saved
}

async fn what_was_saved_is_there_for_the_next_one(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), config());
    push(&db, &queue, &["a:1", "b:1"]).await;
    let items = claim(&queue).await;
    let mut tx = db.begin().await.unwrap();
    assert!(queue.save(&mut tx, &items[0], b"a:wrong").await.unwrap());
    tx.rollback().await.unwrap();
    // Twice the same is no mistake.
    for _ in 0..2 {
        assert!(save(&db, &queue, &items[1], b"b:2").await);
    }
    queue.finish(&all(&items, &Outcome::NotTried("x".into()))).await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["a:1", "b:2"]);
}

async fn to_save_makes_the_lease_last(place: &SqlPlace) {
    let db = open(place).await;
    let short = queue_on(db.clone(), Config { lease: Duration::from_millis(500), ..config() });
    let long = queue_on(db.clone(), config());
    push(&db, &short, &["a:1", "b:1"]).await;
    let items = claim(&short).await;
    assert!(save(&db, &long, &items[0], b"a:2").await);
    assert_eq!(texts(&claim_something(&short).await), ["b:1"]);
    assert!(claim(&short).await.is_empty());
    assert_eq!(short.finish(&all(&items[..1], &Outcome::Done)).await.unwrap().done, 1);
}

async fn what_is_lost_cannot_be_saved(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(100), ..config() });
    push(&db, &queue, &["a:1"]).await;
    let first = claim(&queue).await;
    let second = claim_something(&queue).await;
    assert!(!save(&db, &queue, &first[0], b"a:2").await);
    queue.finish(&all(&second, &Outcome::Done)).await.unwrap();
    assert!(!save(&db, &queue, &second[0], b"a:2").await);
    let entry = queue.find(first[0].id).await.unwrap().unwrap();
    assert_eq!((entry.state, entry.payload.as_slice()), (State::Done, b"a:1".as_slice()));
}

/// Saves, and takes its time to commit.
struct Slow {
    db: Db,
    queue: Queue,
    takes: Duration,
}

impl Handler for Slow {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let mut tx = self.db.begin().await.unwrap();
        for item in items {
            assert!(self.queue.save(&mut tx, item, b"a:2").await.unwrap());
        }
        tokio::time::sleep(self.takes).await;
        tx.commit().await.unwrap();
        vec![Outcome::Done; items.len()]
    }
}

/// The lease is renewed meanwhile, which has to wait for that transaction.
async fn a_handler_in_a_transaction_is_not_held_up_by_its_own_lease(place: &SqlPlace) {
    let db = open(place).await;
    let queue = queue_on(db.clone(), Config { lease: Duration::from_millis(1_500), ..config() });
    push(&db, &queue, &["a:1"]).await;
    let handler = Slow { db: db.clone(), queue: queue.clone(), takes: Duration::from_millis(1_000) };
    let worker = Worker::new(queue.clone(), handler, ProcessId::generate());
    let began = std::time::Instant::now();
    let report = worker.tick().await.unwrap();
    // Whoever waits for a row, or for the one writer, waits for seconds.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!((report.finished.done, report.finished.stale), (1, 0));
    let payload = queue.list(work_queue::Filter::Done, 1).await.unwrap()[0].payload.clone();
    assert_eq!(payload, b"a:2");
}

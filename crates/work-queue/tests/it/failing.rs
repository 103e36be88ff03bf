//! What the failure of items entails, in the transaction that marks them.

use std::sync::atomic::{AtomicBool, Ordering};

use db::Tx;
use work_queue::{FailedItem, Filter, OnFailed};

use super::*;

testkit::on_all_stores!(
    what_a_failure_entails_is_written_with_it,
    what_attempts_that_are_used_up_entail_is_written_too,
    what_a_worker_that_never_reports_leaves_is_written_by_the_claim,
    what_the_failure_of_an_item_born_claimed_entails_is_written,
    a_failure_has_the_payload_that_was_saved_last,
    a_stale_failure_entails_nothing,
    a_failure_that_becomes_stale_while_it_is_written_entails_nothing,
    a_failure_is_not_written_without_what_it_entails,
    what_many_large_failures_entail_is_written,
);

/// Writes what has failed into the table `failures`.
#[derive(Debug, Default)]
struct Note {
    /// Writes something that the store refuses.
    is_wrong: AtomicBool,
}

impl OnFailed for Note {
    fn failed(&self, tx: &mut Tx, FailedItem { item, cause }: FailedItem<'_>) {
        let table = if self.is_wrong.load(Ordering::SeqCst) { "nowhere" } else { "failures" };
        let head = format!("INSERT INTO {table} (item_id, user_id, payload, attempts, cause)");
        let attempts = i64::from(item.attempts).into();
        let (id, user, payload) = ((&item.id).into(), (&item.user).into(), item.payload.as_slice().into());
        tx.insert_at_commit(&head, [[id, user, payload, attempts, cause.into()]]);
    }
}

/// Payload, attempts and cause of what was noted, in the order of the items' ids.
async fn noted(db: &Db) -> Vec<(String, i64, String)> {
    let mut connection = db.connection().await.unwrap();
    let rows: Vec<(Vec<u8>, i64, String)> = db::on!(connection, raw => {
        let query = sqlx::query_as("SELECT payload, attempts, cause FROM failures ORDER BY item_id");
        query.fetch_all(raw).await.unwrap()
    });
    let row = |(payload, attempts, cause)| (String::from_utf8(payload).unwrap(), attempts, cause);
    rows.into_iter().map(row).collect()
}

async fn start(place: &SqlPlace, config: Config) -> (Db, Queue, Arc<Note>) {
    let db = open(place).await;
    let note = Arc::new(Note::default());
    (db.clone(), queue_on(db, config).on_failed(note.clone()), note)
}

async fn what_a_failure_entails_is_written_with_it(place: &SqlPlace) {
    let (db, queue, _) = start(place, config()).await;
    let (id, user) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = db.begin().await.unwrap();
    queue.push(&mut tx, &[New { id, user, key: "a", payload: b"a:1" }]);
    tx.commit().await.unwrap();
    push(&db, &queue, &["b:1", "c:1", "d:1"]).await;
    let items = claim(&queue).await;
    assert_eq!((items[0].id, items[0].user), (id, user));
    let outcomes = [
        Outcome::Failed("bad".into()),
        Outcome::Done,
        Outcome::Again("x".into()),
        Outcome::Failed("worse".into()),
    ];
    let outcomes: Vec<_> = items.iter().cloned().zip(outcomes).collect();
    let finished = queue.finish(&outcomes).await.unwrap();
    assert_eq!((finished.failed, finished.done, finished.again, finished.stale), (2, 1, 1, 0));
    assert_eq!(noted(&db).await, [("a:1".into(), 1, "bad".into()), ("d:1".into(), 1, "worse".into())]);
    let mut connection = db.connection().await.unwrap();
    let users: Vec<(Vec<u8>,)> = db::on!(connection, raw => {
        sqlx::query_as("SELECT user_id FROM failures ORDER BY item_id").fetch_all(raw).await.unwrap()
    });
    assert_eq!(users[0].0, user.as_bytes());
}

async fn what_attempts_that_are_used_up_entail_is_written_too(place: &SqlPlace) {
    let (db, queue, _) = start(place, Config { max_attempts: 2, ..config() }).await;
    push(&db, &queue, &["a:1"]).await;
    for attempt in 1..=2 {
        assert!(noted(&db).await.is_empty());
        let items = claim_something(&queue).await;
        queue.finish(&all(&items, &Outcome::Again(format!("attempt {attempt}")))).await.unwrap();
    }
    assert_eq!(noted(&db).await, [("a:1".into(), 2, "attempt 2".into())]);
}

async fn what_a_worker_that_never_reports_leaves_is_written_by_the_claim(place: &SqlPlace) {
    let hasty = Config { lease: Duration::from_millis(30), max_attempts: 2, ..config() };
    let (db, queue, _) = start(place, hasty).await;
    push(&db, &queue, &["a:1", "b:1"]).await;
    testkit::eventually("they are given up", PATIENCE, async || {
        claim(&queue).await;
        queue.list(Filter::Failed, 10).await.unwrap().len() == 2
    })
    .await;
    let noted = noted(&db).await;
    let noted: Vec<_> = noted.iter().map(|(text, attempts, _)| (text.as_str(), *attempts)).collect();
    assert_eq!(noted, [("a:1", 2), ("b:1", 2)]);
}

async fn what_the_failure_of_an_item_born_claimed_entails_is_written(place: &SqlPlace) {
    let (db, queue, _) = start(place, config()).await;
    let (queue, id) = (queue.unordered(), Uuid::now_v7());
    let mut tx = db.begin().await.unwrap();
    let new = New { id, user: Uuid::nil(), key: "a", payload: b"a:1" };
    queue.push_claimed(&mut tx, ProcessId::generate(), &[new]);
    tx.commit().await.unwrap();
    let unknown = Uuid::now_v7();
    let finished = queue.finish_claimed(&[id, unknown], &Outcome::Failed("bad".into())).await.unwrap();
    assert_eq!((finished.failed, finished.stale), (1, 1));
    assert_eq!(noted(&db).await, [("a:1".into(), 1, "bad".into())]);
}

async fn a_failure_has_the_payload_that_was_saved_last(place: &SqlPlace) {
    let (db, queue, _) = start(place, config()).await;
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    let mut tx = db.begin().await.unwrap();
    assert!(queue.save(&mut tx, &items[0], b"a:2").await.unwrap());
    tx.commit().await.unwrap();
    queue.finish(&all(&items, &Outcome::Failed("bad".into()))).await.unwrap();
    assert_eq!(noted(&db).await[0].0, "a:2");
}

async fn a_stale_failure_entails_nothing(place: &SqlPlace) {
    let (db, queue, _) = start(place, config()).await;
    push(&db, &queue, &["a:1", "b:1", "c:1"]).await;
    let items = claim(&queue).await;
    // One is somebody else's by now, and one was decided on.
    queue.finish(&all(&items[1..2], &Outcome::NotTried("x".into()))).await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["b:1"]);
    queue.skip(items[2].number).await.unwrap().unwrap();
    let finished = queue.finish(&all(&items, &Outcome::Failed("bad".into()))).await.unwrap();
    assert_eq!((finished.failed, finished.stale), (1, 2));
    assert_eq!(noted(&db).await, [("a:1".into(), 1, "bad".into())]);
    // Nor does saying it twice.
    assert_eq!(queue.finish(&all(&items, &Outcome::Failed("bad".into()))).await.unwrap().stale, 3);
    assert_eq!(noted(&db).await.len(), 1);
}

/// Somebody decides on the item in a transaction that is committed while the failure is on its way.
async fn a_failure_that_becomes_stale_while_it_is_written_entails_nothing(place: &SqlPlace) {
    let SqlPlace::Server(database) = place else { return };
    let (db, queue, _) = start(place, config()).await;
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    let mut other = <sqlx::MySqlConnection as sqlx::Connection>::connect(database.url()).await.unwrap();
    for text in ["START TRANSACTION", "UPDATE chores SET lease = lease + 1"] {
        sqlx::Executor::execute(&mut other, text).await.unwrap();
    }
    let other = tokio::sync::Mutex::new(other);
    let finishing =
        tokio::spawn(async move { queue.finish(&all(&items, &Outcome::Failed("bad".into()))).await });
    testkit::eventually("it waits for the other", PATIENCE, async || {
        // A statement about the item that is not done yet.
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                       WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '%chores%'";
        let (waiting,): (i64,) = sqlx::query_as(waiting).fetch_one(&mut *other.lock().await).await.unwrap();
        waiting == 1
    })
    .await;
    sqlx::Executor::execute(&mut other.into_inner(), "COMMIT").await.unwrap();
    assert_eq!(finishing.await.unwrap().unwrap().stale, 1);
    assert!(noted(&db).await.is_empty());
}

async fn a_failure_is_not_written_without_what_it_entails(place: &SqlPlace) {
    let hasty = Config { lease: Duration::from_millis(200), max_attempts: 1, ..config() };
    let (db, queue, note) = start(place, hasty).await;
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    note.is_wrong.store(true, Ordering::SeqCst);
    queue.finish(&all(&items, &Outcome::Failed("bad".into()))).await.unwrap_err();
    testkit::eventually("the lease has ended", PATIENCE, async || queue.has_due().await.unwrap()).await;
    queue.claim(ProcessId::generate()).await.unwrap_err();
    assert!(queue.list(Filter::Failed, 10).await.unwrap().is_empty());
    note.is_wrong.store(false, Ordering::SeqCst);
    assert!(claim(&queue).await.is_empty());
    assert_eq!((queue.list(Filter::Failed, 10).await.unwrap().len(), noted(&db).await.len()), (1, 1));
}

async fn what_many_large_failures_entail_is_written(place: &SqlPlace) {
    let (db, queue, _) = start(place, config()).await;
    // More than a server takes at once, and each as much as it takes well.
    let payload = "x".repeat(1_500_000);
    for key in 0..8 {
        push(&db, &queue, &[&format!("{key}:{payload}")]).await;
    }
    let items = claim(&queue).await;
    assert_eq!(items.len(), 8);
    let finished = queue.finish(&all(&items, &Outcome::Failed("too large".into()))).await.unwrap();
    assert_eq!((finished.failed, noted(&db).await.len()), (8, 8));
}

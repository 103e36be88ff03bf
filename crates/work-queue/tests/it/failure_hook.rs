//! The failure hook, in the transaction that marks an item as failed.

use std::sync::atomic::{AtomicBool, Ordering};

use db::Tx;
use work_queue::{FailedItem, FailureHook, Filter};

use super::*;

testkit::on_all_stores!(
    hook_writes_with_the_failure,
    hook_runs_when_attempts_are_used_up,
    hook_runs_in_the_claim_after_a_silent_worker,
    hook_runs_for_an_item_claimed_at_its_push,
    hook_gets_the_payload_that_was_saved_last,
    stale_failure_does_not_run_the_hook,
    failure_that_becomes_stale_while_written_does_not_run_the_hook,
    failure_is_not_written_if_the_hook_fails,
    hook_handles_many_large_failures,
);

/// Writes failed items into the table `failures`.
#[derive(Debug, Default)]
struct FailureLog {
    /// Whether it writes to a table that does not exist.
    is_broken: AtomicBool,
}

impl FailureHook for FailureLog {
    fn record_failure(&self, tx: &mut Tx, FailedItem { item, cause }: FailedItem<'_>) {
        let table = if self.is_broken.load(Ordering::SeqCst) { "nowhere" } else { "failures" };
        let head = format!("INSERT INTO {table} (item_id, user_id, payload, attempts, cause)");
        let attempts = i64::from(item.attempts).into();
        let (id, user, payload) = ((&item.id).into(), (&item.user).into(), item.payload.as_slice().into());
        tx.insert_at_commit(&head, [[id, user, payload, attempts, cause.into()]]);
    }
}

/// Returns payload, attempts and cause of the recorded failures, by item id.
async fn recorded(db: &Db) -> Vec<(String, i64, String)> {
    let mut connection = db.connection().await.unwrap();
    let rows: Vec<(Vec<u8>, i64, String)> = db::on!(connection, raw => {
        let query = sqlx::query_as("SELECT payload, attempts, cause FROM failures ORDER BY item_id");
        query.fetch_all(raw).await.unwrap()
    });
    let row = |(payload, attempts, cause)| (String::from_utf8(payload).unwrap(), attempts, cause);
    rows.into_iter().map(row).collect()
}

async fn start(place: &TestDatabase, config: Config) -> (Db, WorkQueue, Arc<FailureLog>) {
    let db = open(place).await;
    let log = Arc::new(FailureLog::default());
    (db.clone(), queue_on(db, config).with_failure_hook(log.clone()), log)
}

async fn hook_writes_with_the_failure(place: &TestDatabase) {
    let (db, queue, _) = start(place, config()).await;
    let (id, user) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = db.begin().await.unwrap();
    queue.push(&mut tx, &[NewItem { id, user, key: "a", payload: b"a:1" }]);
    tx.commit().await.unwrap();
    push(&db, &queue, &["b:1", "c:1", "d:1"]).await;
    let items = claim(&queue).await;
    assert_eq!((items[0].id, items[0].user), (id, user));
    let outcomes = [
        ItemOutcome::Failed("bad".into()),
        ItemOutcome::Done,
        ItemOutcome::Retry("x".into()),
        ItemOutcome::Failed("worse".into()),
    ];
    let outcomes: Vec<_> = items.iter().cloned().zip(outcomes).collect();
    let finished = queue.finish(&outcomes).await.unwrap();
    assert_eq!((finished.failed, finished.done, finished.retry, finished.stale), (2, 1, 1, 0));
    assert_eq!(recorded(&db).await, [("a:1".into(), 1, "bad".into()), ("d:1".into(), 1, "worse".into())]);
    let mut connection = db.connection().await.unwrap();
    let users: Vec<(Vec<u8>,)> = db::on!(connection, raw => {
        sqlx::query_as("SELECT user_id FROM failures ORDER BY item_id").fetch_all(raw).await.unwrap()
    });
    assert_eq!(users[0].0, user.as_bytes());
}

async fn hook_runs_when_attempts_are_used_up(place: &TestDatabase) {
    let (db, queue, _) = start(place, Config { max_attempts: 2, ..config() }).await;
    push(&db, &queue, &["a:1"]).await;
    for attempt in 1..=2 {
        assert!(recorded(&db).await.is_empty());
        let items = claim_something(&queue).await;
        queue.finish(&all(&items, &ItemOutcome::Retry(format!("attempt {attempt}")))).await.unwrap();
    }
    assert_eq!(recorded(&db).await, [("a:1".into(), 2, "attempt 2".into())]);
}

async fn hook_runs_in_the_claim_after_a_silent_worker(place: &TestDatabase) {
    let short_lease = Config { lease: Duration::from_millis(30), max_attempts: 2, ..config() };
    let (db, queue, _) = start(place, short_lease).await;
    push(&db, &queue, &["a:1", "b:1"]).await;
    testkit::eventually("both have failed", PATIENCE, async || {
        claim(&queue).await;
        queue.list(Filter::Failed, 10).await.unwrap().len() == 2
    })
    .await;
    let failures = recorded(&db).await;
    let failures: Vec<_> = failures.iter().map(|(text, attempts, _)| (text.as_str(), *attempts)).collect();
    assert_eq!(failures, [("a:1", 2), ("b:1", 2)]);
}

async fn hook_runs_for_an_item_claimed_at_its_push(place: &TestDatabase) {
    let (db, queue, _) = start(place, config()).await;
    let (queue, id) = (queue.unordered(), Uuid::now_v7());
    let mut tx = db.begin().await.unwrap();
    let new = NewItem { id, user: Uuid::nil(), key: "a", payload: b"a:1" };
    queue.push_claimed(&mut tx, ProcessId::generate(), &[new]);
    tx.commit().await.unwrap();
    let unknown = Uuid::now_v7();
    let finished = queue.finish_claimed(&[id, unknown], &ItemOutcome::Failed("bad".into())).await.unwrap();
    assert_eq!((finished.failed, finished.stale), (1, 1));
    assert_eq!(recorded(&db).await, [("a:1".into(), 1, "bad".into())]);
}

async fn hook_gets_the_payload_that_was_saved_last(place: &TestDatabase) {
    let (db, queue, _) = start(place, config()).await;
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    let mut tx = db.begin().await.unwrap();
    assert!(queue.save(&mut tx, &items[0], b"a:2").await.unwrap());
    tx.commit().await.unwrap();
    queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await.unwrap();
    assert_eq!(recorded(&db).await[0].0, "a:2");
}

async fn stale_failure_does_not_run_the_hook(place: &TestDatabase) {
    let (db, queue, _) = start(place, config()).await;
    push(&db, &queue, &["a:1", "b:1", "c:1"]).await;
    let items = claim(&queue).await;
    // Another worker has claimed one, and an operator has skipped one.
    queue.finish(&all(&items[1..2], &ItemOutcome::NotAttempted("x".into()))).await.unwrap();
    assert_eq!(texts(&claim(&queue).await), ["b:1"]);
    queue.skip(items[2].number).await.unwrap().unwrap();
    let finished = queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await.unwrap();
    assert_eq!((finished.failed, finished.stale), (1, 2));
    assert_eq!(recorded(&db).await, [("a:1".into(), 1, "bad".into())]);
    // Reporting it twice does not either.
    assert_eq!(queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await.unwrap().stale, 3);
    assert_eq!(recorded(&db).await.len(), 1);
}

/// Another transaction changes the item and commits while the failure waits for its lock.
async fn failure_that_becomes_stale_while_written_does_not_run_the_hook(place: &TestDatabase) {
    let TestDatabase::Server(database) = place else { return };
    let (db, queue, _) = start(place, config()).await;
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    let mut other = <sqlx::MySqlConnection as sqlx::Connection>::connect(database.url()).await.unwrap();
    for text in ["START TRANSACTION", "UPDATE chores SET lease = lease + 1"] {
        sqlx::Executor::execute(&mut other, text).await.unwrap();
    }
    let other = tokio::sync::Mutex::new(other);
    let finishing =
        tokio::spawn(async move { queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await });
    testkit::eventually("the failure waits for the other transaction", PATIENCE, async || {
        // A running statement about the item.
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                       WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '%chores%'";
        let (waiting,): (i64,) = sqlx::query_as(waiting).fetch_one(&mut *other.lock().await).await.unwrap();
        waiting == 1
    })
    .await;
    sqlx::Executor::execute(&mut other.into_inner(), "COMMIT").await.unwrap();
    assert_eq!(finishing.await.unwrap().unwrap().stale, 1);
    assert!(recorded(&db).await.is_empty());
}

async fn failure_is_not_written_if_the_hook_fails(place: &TestDatabase) {
    let short_lease = Config { lease: Duration::from_millis(200), max_attempts: 1, ..config() };
    let (db, queue, log) = start(place, short_lease).await;
    push(&db, &queue, &["a:1"]).await;
    let items = claim(&queue).await;
    log.is_broken.store(true, Ordering::SeqCst);
    queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await.unwrap_err();
    testkit::eventually("the lease has expired", PATIENCE, async || queue.has_due().await.unwrap()).await;
    queue.claim(ProcessId::generate()).await.unwrap_err();
    assert!(queue.list(Filter::Failed, 10).await.unwrap().is_empty());
    log.is_broken.store(false, Ordering::SeqCst);
    assert!(claim(&queue).await.is_empty());
    assert_eq!((queue.list(Filter::Failed, 10).await.unwrap().len(), recorded(&db).await.len()), (1, 1));
}

async fn hook_handles_many_large_failures(place: &TestDatabase) {
    let (db, queue, _) = start(place, config()).await;
    // Together they exceed the server's message size; each one alone fits.
    let payload = "x".repeat(1_500_000);
    for key in 0..8 {
        push(&db, &queue, &[&format!("{key}:{payload}")]).await;
    }
    let items = claim(&queue).await;
    assert_eq!(items.len(), 8);
    let finished = queue.finish(&all(&items, &ItemOutcome::Failed("too large".into()))).await.unwrap();
    assert_eq!((finished.failed, recorded(&db).await.len()), (8, 8));
}

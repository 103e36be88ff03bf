//! Operator commands that deadlock with another transaction. SQLite has one writer, so nothing conflicts there.

use base::Timestamp;
use sqlx::mysql::MySqlConnection;
use sqlx::{Connection, Executor};
use work_queue::{Decision, FailedFilter, Filter};

use super::*;

/// Runs a command that changes rows 1 and 2 while another transaction locks them in reverse order.
async fn with_deadlock<T>(place: &TestDatabase, db: &Db, command: impl Future<Output = T>) -> T {
    let mut other = MySqlConnection::connect(&place.url()).await.unwrap();
    other.execute("START TRANSACTION").await.unwrap();
    // The server aborts the transaction that has changed fewer rows: the command's.
    for _ in 0..100 {
        let insert =
            "INSERT INTO failures (item_id, user_id, payload, attempts, cause) VALUES ('', '', '', 0, '')";
        other.execute(insert).await.unwrap();
    }
    other.execute("SELECT id FROM chores WHERE id = 2 FOR UPDATE").await.unwrap();
    let deadlock = async {
        testkit::eventually("the command has locked the first row", PATIENCE, async || {
            const FREE: &str = "SELECT id FROM chores WHERE id = 1 FOR UPDATE SKIP LOCKED";
            let mut connection = db.connection().await.unwrap();
            let free: Option<(i64,)> =
                db::on!(connection, raw => sqlx::query_as(FREE).fetch_optional(raw).await.unwrap());
            free.is_none()
        })
        .await;
        other.execute("UPDATE chores SET cause = 'x' WHERE id = 1").await.unwrap();
        other.execute("COMMIT").await.unwrap();
    };
    futures::join!(command, deadlock).0
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_decision_survives_a_deadlock() {
    for place in testkit::need!(TestDatabase::servers().await) {
        let db = open(&place).await;
        let queue = queue_on(db.clone(), config());
        push(&db, &queue, &["a:1", "b:1"]).await;
        let items = claim(&queue).await;
        queue.finish(&all(&items, &ItemOutcome::Failed("bad".into()))).await.unwrap();
        let decided =
            with_deadlock(&place, &db, queue.decide_failed(&FailedFilter::default(), Decision::Retry)).await;
        assert_eq!(decided.unwrap(), 2);
        assert_eq!(queue.list(Filter::Open, 10).await.unwrap().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reopening_survives_a_deadlock() {
    for place in testkit::need!(TestDatabase::servers().await) {
        let db = open(&place).await;
        let queue = queue_on(db.clone(), config());
        push(&db, &queue, &["a:1", "b:1"]).await;
        let items = claim(&queue).await;
        queue.finish(&all(&items, &ItemOutcome::Done)).await.unwrap();
        let reopened = with_deadlock(&place, &db, queue.reopen_done_since(Timestamp::from_millis(0))).await;
        assert_eq!(reopened.unwrap(), 2);
        assert_eq!(queue.list(Filter::Open, 10).await.unwrap().len(), 2);
    }
}

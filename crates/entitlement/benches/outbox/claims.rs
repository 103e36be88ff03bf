//! Measures a claim in an empty table and in one with a million published rows.

use std::time::Instant;

use base::id::{ProcessId, Uuid};
use sqlx::{ConnectOptions, Executor, MySqlConnection};
use work_queue::{ItemOutcome, NewItem, WorkQueue};

use super::*;

const PUBLISHED: usize = 1_000_000;
const ROUNDS: usize = 7;
const CLAIMS: usize = 40;
const BATCH: usize = 100;

pub(super) async fn run(report: &mut Report) {
    let server = server().await;
    let (empty, full) = (server.database().await, server.database().await);
    let (empty_db, _) = open(&empty, 4).await;
    let (full_db, config) = open(&full, 4).await;
    insert_published(&mut config.server().unwrap().connect().await.unwrap()).await;
    let settings = || outbox::Config { batch: BATCH as u32, ..queue_config() };
    let (empty, full) = (outbox(&empty_db, settings()), outbox(&full_db, settings()));
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        small.push(claim_micros(&empty_db, empty.queue()).await);
        large.push(claim_micros(&full_db, full.queue()).await);
        // Keeps the table empty.
        let mut tx = empty_db.begin().await.unwrap();
        db::on!(tx, connection => { sqlx::query("DELETE FROM outbox").execute(connection).await.unwrap(); });
        tx.commit().await.unwrap();
    }
    let what = "claim of 100, us, with a million published rows";
    let ratio = add_row(report, what, median(large), median(small), "<= 1.3", "no published rows");
    report.measure("claim_cost", ratio);
}

/// Inserts [`PUBLISHED`] published rows.
async fn insert_published(connection: &mut MySqlConnection) {
    const ROWS: &str = "INSERT INTO outbox (item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, created_at, payload) \
        SELECT UNHEX(MD5(seq)), UNHEX(MD5(0)), CONCAT('entitlement/', seq), CONV(SUBSTR(MD5(seq), 1, 15), 16, 10), 1, \
        1772366400000 + seq, 1, 1, 1772366400000, REPEAT('x', 300) FROM ";
    for start in (0..PUBLISHED).step_by(50_000) {
        let text = format!("{ROWS} seq_{}_to_{}", start + 1, start + 50_000);
        connection.execute(sqlx::AssertSqlSafe(text)).await.unwrap();
    }
    connection.execute("ANALYZE TABLE outbox").await.unwrap();
}

/// Returns the median time of a full claim, in microseconds.
async fn claim_micros(db: &Db, queue: &WorkQueue) -> f64 {
    for _ in 0..CLAIMS {
        let mut tx = db.begin().await.unwrap();
        let keys: Vec<String> = (0..BATCH).map(|_| Uuid::now_v7().to_string()).collect();
        let items: Vec<NewItem<'_>> = keys
            .iter()
            .map(|key| NewItem { id: Uuid::now_v7(), user: Uuid::nil(), key, payload: &[b'x'; 300] })
            .collect();
        queue.push(&mut tx, &items);
        tx.commit().await.unwrap();
    }
    let mut times = Vec::new();
    for _ in 0..CLAIMS {
        let start = Instant::now();
        let claim = queue.claim(ProcessId::generate()).await.unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert_eq!(claim.items.len(), BATCH);
        let done: Vec<_> = claim.items.into_iter().map(|item| (item, ItemOutcome::Done)).collect();
        queue.finish(&done).await.unwrap();
    }
    median(times)
}

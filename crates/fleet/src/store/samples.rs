//! The table of samples.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Timestamp;
use base::id::{ProcessId, Uuid};
use db::{Db, Error};
use sqlx::AssertSqlSafe;

use super::millis;

/// How many samples one transaction removes. Few, so that it holds its locks only briefly.
const REMOVE_BATCH: i64 = 500;

const READ: &str = "SELECT at, process_id, figures FROM fleet_samples WHERE at >= ? ORDER BY at, process_id";
const REMOVE: &str = "DELETE FROM fleet_samples WHERE at <= ?";

/// The values of the figures of one process at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Timestamp,
    pub(crate) process: Uuid,
    pub(crate) figures: BTreeMap<String, f64>,
}

db::row! {
    struct SampleRow {
        at: i64,
        process_id: Vec<u8>,
        figures: String,
    }
}

/// Inserts a sample with the time of the database.
pub(crate) async fn insert(db: &Db, process: ProcessId, figures: &str) -> Result<(), Error> {
    let now = db.dialect().now();
    // Replaces a sample of the same millisecond.
    let text = format!("REPLACE INTO fleet_samples (at, process_id, figures) VALUES ({now}, ?, ?)");
    let insert = async {
        let mut tx = db.begin().await?;
        db::on!(tx, connection => {
            sqlx::query(AssertSqlSafe(text))
                .bind(&process.as_uuid().as_bytes()[..])
                .bind(figures)
                .execute(connection)
                .await?;
        });
        tx.commit().await
    };
    db.bounded(insert).await
}

/// Reads the samples of all processes from `since` on, the oldest first. Skips samples that are not JSON objects of numbers.
pub(crate) async fn read(db: &Db, since: Timestamp) -> Result<Vec<Sample>, Error> {
    let read = async {
        let mut connection = db.connection().await?;
        let rows: Vec<SampleRow> = db::on!(connection, raw => {
            sqlx::query_as(READ).bind(since.as_millis()).fetch_all(raw).await?
        });
        Ok::<_, Error>(rows)
    };
    let sample = |row: SampleRow| {
        Some(Sample {
            at: Timestamp::from_millis(row.at),
            process: Uuid::from_slice(&row.process_id).ok()?,
            figures: serde_json::from_str(&row.figures).ok()?,
        })
    };
    Ok(db.bounded(read).await?.into_iter().filter_map(sample).collect())
}

/// Removes a batch of samples that are older than `age`. Returns how many.
pub(crate) async fn remove_old(db: &Db, age: Duration) -> Result<u64, Error> {
    let now = db.dialect().now();
    let last = format!(
        "SELECT MAX(at) FROM (SELECT at FROM fleet_samples WHERE at < {now} - ? ORDER BY at LIMIT ?) AS old"
    );
    let remove = async {
        let mut connection = db.connection().await?;
        let (last,): (Option<i64>,) = db::on!(connection, raw => {
            sqlx::query_as(AssertSqlSafe(last)).bind(millis(age)).bind(REMOVE_BATCH).fetch_one(raw).await?
        });
        drop(connection);
        let Some(last) = last else { return Ok(0) };
        let mut tx = db.begin().await?;
        let removed = db::on!(tx, connection => {
            sqlx::query(REMOVE).bind(last).execute(connection).await?.rows_affected()
        });
        tx.commit().await?;
        Ok(removed)
    };
    db.bounded(remove).await
}

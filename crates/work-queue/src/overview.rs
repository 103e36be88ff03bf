//! The state of a queue for operators: failed items, delay, and leases by worker.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::Error;
use sqlx::AssertSqlSafe;

use crate::item::{FAILED, OPEN, uuid};
use crate::statement::StatementBuilder;
use crate::{Filter, ItemView, WorkQueue};

// Each reads at most 10,000 rows, because the state is read every few seconds. Leases end soon, so they are among the first that are due.
const FAILED_ITEMS: &str =
    "SELECT COUNT(*) FROM (SELECT id FROM {table} {by_state} WHERE state = {FAILED} LIMIT 10000) AS failed";
const LEASES: &str = "SELECT holder, COUNT(*) AS items FROM (SELECT holder FROM {table} {by_state} \
    WHERE state = {OPEN} AND due_at > {now} ORDER BY due_at LIMIT 10000) AS later WHERE holder IS NOT NULL GROUP BY holder";
const RETRYING: &str = "SELECT item_key, COUNT(*) AS items, MIN(due_at) AS due_at, MAX(cause) AS cause \
    FROM (SELECT item_key, due_at, cause FROM {table} {by_state} WHERE state = {OPEN} ORDER BY due_at LIMIT 10000) AS soonest \
    WHERE cause IS NOT NULL GROUP BY item_key ORDER BY item_key LIMIT ?";

/// The state of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// At most 10,000.
    pub failed: u64,
    /// How long the next item has been due. None if no item is due.
    pub late: Option<Duration>,
    /// How many items each worker has in flight.
    pub leases: Vec<(Uuid, u64)>,
}

/// A key with open items whose last attempt was not successful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryingKey {
    pub key: String,
    pub items: u64,
    /// When the next of them is due.
    pub next: Timestamp,
    pub cause: String,
}

db::row! {
    struct LeaseRow {
        holder: Vec<u8>,
        items: i64,
    }
}

db::row! {
    struct RetryingRow {
        item_key: String,
        items: i64,
        due_at: i64,
        cause: String,
    }
}

impl WorkQueue {
    /// Reads the state of the queue.
    pub async fn overview(&self) -> Result<Overview, Error> {
        let now = self.db.now().await?;
        let next = self.list(Filter::Open, 1).await?.pop();
        let late = |item: ItemView| {
            let late = now.as_millis().saturating_sub(item.due.as_millis());
            u64::try_from(late).ok().filter(|late| *late > 0).map(Duration::from_millis)
        };
        let (failed, leases) = (self.text(FAILED_ITEMS), self.text(LEASES));
        let reading = async {
            let mut connection = self.db.connection().await?;
            let failed: i64 = db::on!(connection, raw => {
                sqlx::query_scalar(AssertSqlSafe(failed)).fetch_one(raw).await?
            });
            let leases: Vec<LeaseRow> = db::on!(connection, raw => {
                sqlx::query_as(AssertSqlSafe(leases)).fetch_all(raw).await?
            });
            Ok::<_, Error>((failed, leases))
        };
        let (failed, leases) = self.db.bounded(reading).await?;
        let lease = |row: LeaseRow| (uuid(&row.holder), row.items.unsigned_abs());
        Ok(Overview {
            failed: failed.unsigned_abs(),
            late: next.and_then(late),
            leases: leases.into_iter().map(lease).collect(),
        })
    }

    /// Returns the keys with open items whose last attempt was not successful, in alphabetical order.
    pub async fn retrying_keys(&self, limit: u32) -> Result<Vec<RetryingKey>, Error> {
        let text = self.text(RETRYING);
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<RetryingRow> = db::on!(connection, raw => {
                sqlx::query_as(AssertSqlSafe(text)).bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok::<_, Error>(rows)
        };
        let key = |row: RetryingRow| RetryingKey {
            key: row.item_key,
            items: row.items.unsigned_abs(),
            next: Timestamp::from_millis(row.due_at),
            cause: row.cause,
        };
        Ok(self.db.bounded(reading).await?.into_iter().map(key).collect())
    }

    fn text(&self, text: &str) -> String {
        let text = text.replace("{FAILED}", &FAILED.to_string()).replace("{OPEN}", &OPEN.to_string());
        StatementBuilder::new(self.table, self.db.dialect()).fill(&text)
    }
}

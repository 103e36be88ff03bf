//! How a queue stands, for operators: what has failed, what is late, who holds what.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::Error;
use sqlx::AssertSqlSafe;

use crate::item::{FAILED, OPEN, uuid};
use crate::statement::Text;
use crate::{Entry, Filter, Queue};

const FAILED_ITEMS: &str = "SELECT COUNT(*) FROM {table} {by_state} WHERE state = {FAILED}";
const LEASES: &str = "SELECT holder, COUNT(*) AS items FROM {table} {by_state} \
    WHERE state = {OPEN} AND due_at > {now} AND holder IS NOT NULL GROUP BY holder";
const TROUBLED: &str = "SELECT item_key, COUNT(*) AS items, MIN(due_at) AS due_at, MAX(cause) AS cause FROM {table} {by_state} \
    WHERE state = {OPEN} AND cause IS NOT NULL GROUP BY item_key ORDER BY item_key LIMIT ?";

/// How a queue stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    pub failed: u64,
    /// For how long the item that is due next has been due. None if nothing is due.
    pub late: Option<Duration>,
    /// How many items each worker has claimed and not finished.
    pub leases: Vec<(Uuid, u64)>,
}

/// The open items of a key that have failed at least once and are tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TroubledKey {
    pub key: String,
    pub items: u64,
    /// When the next of them is tried.
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
    struct TroubledRow {
        item_key: String,
        items: i64,
        due_at: i64,
        cause: String,
    }
}

impl Queue {
    pub async fn overview(&self) -> Result<Overview, Error> {
        let now = self.db.now().await?;
        let next = self.list(Filter::Open, 1).await?.pop();
        let late = |item: Entry| {
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

    /// The keys whose open items have failed at least once, in their order.
    pub async fn troubled_keys(&self, limit: u32) -> Result<Vec<TroubledKey>, Error> {
        let text = self.text(TROUBLED);
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<TroubledRow> = db::on!(connection, raw => {
                sqlx::query_as(AssertSqlSafe(text)).bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok::<_, Error>(rows)
        };
        let key = |row: TroubledRow| TroubledKey {
            key: row.item_key,
            items: row.items.unsigned_abs(),
            next: Timestamp::from_millis(row.due_at),
            cause: row.cause,
        };
        Ok(self.db.bounded(reading).await?.into_iter().map(key).collect())
    }

    fn text(&self, text: &str) -> String {
        let text = text.replace("{FAILED}", &FAILED.to_string()).replace("{OPEN}", &OPEN.to_string());
        Text::new(self.table, self.db.dialect()).fill(&text)
    }
}

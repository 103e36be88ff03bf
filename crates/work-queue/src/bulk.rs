//! Bulk decisions of operators about failed items.

use std::sync::Arc;

use base::Timestamp;
use db::{Error, ListStatement, bind_list};
use sqlx::AssertSqlSafe;

use crate::WorkQueue;
use crate::item::{FAILED, OPEN, SKIPPED};
use crate::statement::StatementBuilder;

/// How many items one transaction changes.
const AT_ONCE: usize = 500;

/// Selects failed items. An item must match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedFilter {
    /// A substring of the cause.
    pub cause: Option<String>,
    /// Failed at this time or later.
    pub since: Option<Timestamp>,
    /// Failed at this time or earlier.
    pub until: Option<Timestamp>,
    pub key: Option<String>,
    /// A substring of the payload.
    pub content: Option<String>,
}

/// What to do with failed items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Reopens them with all their attempts. The items behind them follow.
    Retry,
    /// Gives them up. The items behind them continue.
    Skip,
}

#[derive(Clone, Debug)]
pub(crate) struct BulkStatements {
    count: Arc<str>,
    select: Arc<str>,
    set: ListStatement,
    bring_forward: ListStatement,
}

impl BulkStatements {
    pub(crate) fn new(text: &StatementBuilder) -> Self {
        let matching = format!(
            "FROM {{table}} {{by_state}} WHERE state = {FAILED} AND id > ? AND due_at >= ? AND due_at <= ? \
             AND (? = '' OR item_key = ?) AND INSTR(COALESCE(cause, ''), ?) > 0 AND (? = '' OR INSTR(payload, ?) > 0)"
        );
        Self {
            count: text.fixed(&format!("SELECT COUNT(*) FROM (SELECT id {matching} LIMIT ?) AS counted")),
            select: text.fixed(&format!("SELECT id, key_hash {matching} ORDER BY id LIMIT ?")),
            set: text.list(
                &format!(
                    "UPDATE {{table}} SET state = ?, due_at = {{now}}, attempts = 0, holder = NULL, lease = lease + 1 \
                     WHERE state = {FAILED} AND id IN ({{list}})"
                ),
                AT_ONCE,
            ),
            // Includes the reopened items: each key is then in line in its own order.
            bring_forward: text.list(
                &format!(
                    "UPDATE {{table}} {{by_key}} SET due_at = created_at \
                     WHERE state = {OPEN} AND holder IS NULL AND key_hash IN ({{list}})"
                ),
                AT_ONCE,
            ),
        }
    }
}

/// Binds the number after which to look, then the conditions of a filter.
macro_rules! bind_filter {
    ($query:expr, $after:expr, $filter:expr) => {{
        let filter: &FailedFilter = $filter;
        let (key, cause) = (filter.key.as_deref().unwrap_or(""), filter.cause.as_deref().unwrap_or(""));
        let since = filter.since.map_or(i64::MIN, Timestamp::as_millis);
        let until = filter.until.map_or(i64::MAX, Timestamp::as_millis);
        let content = filter.content.as_deref().unwrap_or("");
        let query = $query.bind($after).bind(since).bind(until).bind(key).bind(key).bind(cause);
        // As bytes: the payload is no text.
        query.bind(content).bind(content.as_bytes())
    }};
}

impl WorkQueue {
    /// Counts the failed items that match.
    pub async fn count_failed(&self, filter: &FailedFilter) -> Result<u64, Error> {
        self.count_matching(filter, i64::MAX).await
    }

    /// Counts at most `limit` failed items that match.
    pub(crate) async fn count_matching(&self, filter: &FailedFilter, limit: i64) -> Result<u64, Error> {
        let text = AssertSqlSafe(self.bulk.count.clone());
        let counting = async {
            let mut connection = self.db.connection().await?;
            let (count,): (i64,) = db::on!(connection, raw => {
                bind_filter!(sqlx::query_as(text), 0_i64, filter).bind(limit).fetch_one(raw).await?
            });
            Ok(count.unsigned_abs())
        };
        self.db.bounded(counting).await
    }

    /// Applies a decision to all failed items that match, in the order of their numbers. Returns how many there were. An item that
    /// fails again meanwhile is not changed twice.
    pub async fn decide_failed(&self, filter: &FailedFilter, decision: Decision) -> Result<u64, Error> {
        let (mut decided, mut after) = (0, 0);
        loop {
            let Some((changed, last)) = self.decide_next(filter, decision, after).await? else {
                return Ok(decided);
            };
            decided += changed;
            after = last;
        }
    }

    /// Applies a decision to the next failed items that match and have a higher number than `after`, in one transaction. Returns how many
    /// it changed and the last number, or none if there are no more.
    pub async fn decide_next(
        &self,
        filter: &FailedFilter,
        decision: Decision,
        after: i64,
    ) -> Result<Option<(u64, i64)>, Error> {
        // A worker that claims items behind these at the same time can cause a deadlock.
        let deciding = || self.db.bounded(self.decide_some(filter, decision, after));
        db::retry_conflicts(Error::is_conflict, deciding).await
    }

    async fn decide_some(
        &self,
        filter: &FailedFilter,
        decision: Decision,
        after: i64,
    ) -> Result<Option<(u64, i64)>, Error> {
        let mut tx = self.db.begin().await?;
        let text = AssertSqlSafe(self.bulk.select.clone());
        let found: Vec<(i64, i64)> = db::on!(tx, connection => {
            let query = bind_filter!(sqlx::query_as(text), after, filter).bind(AT_ONCE as i64);
            query.fetch_all(connection).await?
        });
        let Some((last, _)) = found.last().copied() else {
            tx.rollback().await?;
            return Ok(None);
        };
        let (numbers, keys): (Vec<i64>, Vec<i64>) = found.into_iter().unzip();
        let state = match decision {
            Decision::Retry => OPEN,
            Decision::Skip => SKIPPED,
        };
        let (text, padding) = self.bulk.set.for_length(numbers.len());
        let changed = db::on!(tx, connection => {
            bind_list!(sqlx::query(text).bind(state), numbers, padding).execute(connection).await?.rows_affected()
        });
        let (text, padding) = self.bulk.bring_forward.for_length(keys.len());
        if self.is_ordered {
            db::on!(tx, connection => {
                bind_list!(sqlx::query(text), keys, padding).execute(connection).await?;
            });
        }
        tx.wake_after_commit(&self.pushed);
        tx.commit().await?;
        Ok(Some((changed, last)))
    }
}

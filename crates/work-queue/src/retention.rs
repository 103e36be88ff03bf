//! Retention: removes old finished items and counts the rest for the metrics.

use std::sync::Arc;
use std::time::Duration;

use db::{Error, ListStatement, bind_list};
use runtime::lifecycle::{Drain, LoopError};
use sqlx::AssertSqlSafe;

use crate::WorkQueue;
use crate::claim::millis;
use crate::item::{DONE, FAILED, OPEN, SKIPPED};
use crate::statement::StatementBuilder;

/// How many items one transaction removes. Few, so that claims do not wait for its locks.
const REMOVED_AT_ONCE: usize = 500;
/// The wait between two sweeps.
const INTERVAL: Duration = Duration::from_secs(10);
/// The wait between two removals of one sweep.
const PAUSE: Duration = Duration::from_millis(20);
/// The largest count that is reported.
const MAX_COUNT: i64 = 1_000_000;

/// Removes finished items that are older than the retention, and counts the others.
#[derive(Clone, Debug)]
pub struct RetentionCleaner(WorkQueue);

#[derive(Clone, Debug)]
pub(crate) struct RetentionStatements {
    old: Arc<str>,
    remove: ListStatement,
    count: Arc<str>,
    oldest: Arc<str>,
}

impl RetentionStatements {
    pub(crate) fn new(text: &StatementBuilder) -> Self {
        Self {
            old: text.fixed(
                "SELECT id FROM {table} {by_state} WHERE state = ? AND due_at < {now} - ? ORDER BY due_at, id LIMIT ? {skip_locked}",
            ),
            remove: text.list("DELETE FROM {table} WHERE id IN ({list})", REMOVED_AT_ONCE),
            count: text.fixed(
                "SELECT COUNT(*) FROM (SELECT id FROM {table} {by_state} WHERE state = ? LIMIT ?) AS counted",
            ),
            oldest: text.fixed(
                "SELECT due_at, {now} FROM {table} {by_state} WHERE state = ? ORDER BY due_at, id LIMIT 1",
            ),
        }
    }
}

impl RetentionCleaner {
    pub fn new(queue: impl Into<WorkQueue>) -> Self {
        Self(queue.into())
    }

    /// Removes one batch of old items per finished state. Returns how many it removed.
    pub async fn remove_old(&self) -> Result<usize, Error> {
        let mut removed = 0;
        for state in [DONE, SKIPPED] {
            removed += self.0.db.bounded(self.remove_state(state)).await?;
        }
        self.0.metrics.removed(removed);
        Ok(removed)
    }

    async fn remove_state(&self, state: i32) -> Result<usize, Error> {
        let statements = &self.0.retention;
        let mut tx = self.0.db.begin().await?;
        let (old, retention) = (AssertSqlSafe(statements.old.clone()), millis(self.0.config.retention));
        let numbers: Vec<(i64,)> = db::on!(tx, connection => {
            let query = sqlx::query_as(old).bind(state).bind(retention).bind(REMOVED_AT_ONCE as i64);
            query.fetch_all(connection).await?
        });
        let numbers: Vec<i64> = numbers.into_iter().map(|(number,)| number).collect();
        if numbers.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        let (text, padding) = statements.remove.for_length(numbers.len());
        db::on!(tx, connection => {
            bind_list!(sqlx::query(text), numbers, padding).execute(connection).await?;
        });
        tx.commit().await?;
        Ok(numbers.len())
    }

    /// Counts open and failed items for the metrics.
    pub async fn count(&self) -> Result<(), Error> {
        let counting = async {
            let mut connection = self.0.db.connection().await?;
            let mut counts = [0; 2];
            for (count, state) in counts.iter_mut().zip([OPEN, FAILED]) {
                let text = AssertSqlSafe(self.0.retention.count.clone());
                (*count,) = db::on!(connection, raw => {
                    sqlx::query_as::<_, (i64,)>(text).bind(state).bind(MAX_COUNT).fetch_one(raw).await?
                });
            }
            let text = AssertSqlSafe(self.0.retention.oldest.clone());
            let oldest: Option<(i64, i64)> = db::on!(connection, raw => {
                sqlx::query_as(text).bind(OPEN).fetch_optional(raw).await?
            });
            Ok::<_, Error>((counts, oldest))
        };
        let ([open, failed], oldest) = self.0.db.bounded(counting).await?;
        let age = oldest.map_or(0, |(due_at, now)| now.saturating_sub(due_at).max(0));
        self.0.metrics.counted(open, failed, Duration::from_millis(age.unsigned_abs()));
        Ok(())
    }

    /// Sweeps the table every ten seconds until the drain is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.remove_old().await? > 0 {
                if !drain.sleep(PAUSE).await {
                    return Ok(());
                }
            }
            self.count().await?;
            if !drain.sleep(INTERVAL).await {
                return Ok(());
            }
        }
    }
}

//! Keeping the table small, and counting what is in it.

use std::sync::Arc;
use std::time::Duration;

use db::{Error, ListStatement, bind_list};
use runtime::lifecycle::{Drain, LoopError};
use sqlx::AssertSqlSafe;

use crate::Queue;
use crate::claim::millis;
use crate::item::{DONE, FAILED, OPEN, SKIPPED};
use crate::statement::Text;

/// How many items are removed at once: few, so that nobody waits for it.
const REMOVED_AT_ONCE: usize = 500;
/// Between two looks at the table.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two removals, while there is more.
const BREATH: Duration = Duration::from_millis(20);
/// Beyond this many, items are not counted one by one.
const COUNTED: i64 = 1_000_000;

/// Removes what has been finished for long enough, and counts the rest.
#[derive(Clone, Debug)]
pub struct Keeper(Queue);

#[derive(Clone, Debug)]
pub(crate) struct KeepTexts {
    old: Arc<str>,
    remove: ListStatement,
    count: Arc<str>,
    oldest: Arc<str>,
}

impl KeepTexts {
    pub(crate) fn new(text: &Text) -> Self {
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

impl Keeper {
    pub fn new(queue: impl Into<Queue>) -> Self {
        Self(queue.into())
    }

    /// Removes some of what is old, and says how many.
    pub async fn remove_old(&self) -> Result<usize, Error> {
        let mut removed = 0;
        for state in [DONE, SKIPPED] {
            removed += self.0.db.bounded(self.remove_state(state)).await?;
        }
        self.0.metrics.removed(removed);
        Ok(removed)
    }

    async fn remove_state(&self, state: i32) -> Result<usize, Error> {
        let texts = &self.0.keep;
        let mut tx = self.0.db.begin().await?;
        let (old, retention) = (AssertSqlSafe(texts.old.clone()), millis(self.0.config.retention));
        let numbers: Vec<(i64,)> = db::on!(tx, connection => {
            let query = sqlx::query_as(old).bind(state).bind(retention).bind(REMOVED_AT_ONCE as i64);
            query.fetch_all(connection).await?
        });
        let numbers: Vec<i64> = numbers.into_iter().map(|(number,)| number).collect();
        if numbers.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        let (text, padding) = texts.remove.of(numbers.len());
        db::on!(tx, connection => {
            bind_list!(sqlx::query(text), numbers, padding).execute(connection).await?;
        });
        tx.commit().await?;
        Ok(numbers.len())
    }

    /// Counts what is open and what has failed, for the metrics.
    pub async fn count(&self) -> Result<(), Error> {
        let counting = async {
            let mut connection = self.0.db.connection().await?;
            let mut counts = [0; 2];
            for (count, state) in counts.iter_mut().zip([OPEN, FAILED]) {
                let text = AssertSqlSafe(self.0.keep.count.clone());
                (*count,) = db::on!(connection, raw => {
                    sqlx::query_as::<_, (i64,)>(text).bind(state).bind(COUNTED).fetch_one(raw).await?
                });
            }
            let text = AssertSqlSafe(self.0.keep.oldest.clone());
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

    /// Removes everything that is old, a few at a time, and counts the rest; every now and then until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.remove_old().await? > 0 {
                if !drain.sleep(BREATH).await {
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

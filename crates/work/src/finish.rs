//! Writing down what became of items, as long as they are ours.

use std::collections::BTreeMap;
use std::time::Duration;

use db::{Error, Tx};
use tokio::time::Instant;

use crate::claim::millis;
use crate::item::{DONE, FAILED, OPEN};
use crate::statement::{ListStatement, Text, bind_list};
use crate::{Item, Outcome, Queue};

/// How long a cause may be.
const CAUSE: usize = 1_000;

/// What was written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    pub done: usize,
    /// To be tried again later.
    pub again: usize,
    pub failed: usize,
    pub not_tried: usize,
    /// No longer ours: somebody else has claimed them, or an operator has decided on them.
    pub stale: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct FinishTexts {
    done: ListStatement,
    again: ListStatement,
    failed: ListStatement,
    not_tried: ListStatement,
    renew: ListStatement,
    /// Those that are still ours, locked.
    pub(crate) ours: ListStatement,
}

impl FinishTexts {
    pub(crate) fn new(text: &Text, max: usize) -> Self {
        let list = |set: &str| {
            text.list(
                &format!(
                    "UPDATE {{table}} SET {set} WHERE lease = ? AND state = {OPEN} AND id IN ({{list}})"
                ),
                max,
            )
        };
        Self {
            done: list(&format!("state = {DONE}, due_at = {{now}}, holder = NULL, cause = NULL")),
            again: list("due_at = {now} + ?, holder = NULL, cause = ?"),
            failed: list(&format!("state = {FAILED}, due_at = {{now}}, holder = NULL, cause = ?")),
            // Back to where it was in the line.
            not_tried: list("due_at = created_at, attempts = attempts - 1, holder = NULL, cause = ?"),
            renew: list("due_at = {now} + ?"),
            ours: text.list(
                &format!(
                    "SELECT id, item_id, user_id, item_key, key_hash, payload, attempts, created_at FROM {{table}} \
                     WHERE lease = ? AND state = {OPEN} AND id IN ({{list}}) {{for_update}}"
                ),
                max,
            ),
        }
    }
}

/// Items with the same end, and the same lease number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Done,
    Again { attempts: u32, cause: String },
    Failed(String),
    NotTried(String),
}

impl Queue {
    /// Writes down what became of the items, each with its outcome.
    pub async fn finish(&self, outcomes: &[(Item, Outcome)]) -> Result<Finished, Error> {
        let mut groups: BTreeMap<(End, i64), Vec<i64>> = BTreeMap::new();
        for (item, outcome) in outcomes {
            groups.entry((self.end(item, outcome), item.lease)).or_default().push(item.number);
        }
        let finished = self.db.bounded(self.write(&groups)).await?;
        self.metrics.finished(&finished);
        Ok(finished)
    }

    fn end(&self, item: &Item, outcome: &Outcome) -> End {
        let short = |cause: &str| cause.chars().take(CAUSE).collect();
        match outcome {
            Outcome::Done => End::Done,
            Outcome::Again(cause) if item.attempts < self.config.max_attempts => {
                End::Again { attempts: item.attempts, cause: short(cause) }
            }
            Outcome::Again(cause) | Outcome::Failed(cause) => End::Failed(short(cause)),
            Outcome::NotTried(cause) => End::NotTried(short(cause)),
        }
    }

    async fn write(&self, groups: &BTreeMap<(End, i64), Vec<i64>>) -> Result<Finished, Error> {
        let mut finished = Finished::default();
        if groups.is_empty() {
            return Ok(finished);
        }
        let mut tx = self.db.begin().await?;
        for ((end, lease), numbers) in groups {
            if let (End::Failed(cause), true) = (end, self.on_failed.is_some()) {
                let items = self.lock_ours(&mut tx, numbers, *lease).await?;
                self.tell_failed(&mut tx, &items, cause);
            }
            let changed = self.write_group(&mut tx, end, *lease, numbers).await?;
            let count = match end {
                End::Done => &mut finished.done,
                End::Again { .. } => &mut finished.again,
                End::Failed(_) => &mut finished.failed,
                End::NotTried(_) => &mut finished.not_tried,
            };
            *count += changed;
            finished.stale += numbers.len().saturating_sub(changed);
        }
        tx.commit().await?;
        Ok(finished)
    }

    async fn write_group(&self, tx: &mut Tx, end: &End, lease: i64, numbers: &[i64]) -> Result<usize, Error> {
        let texts = &self.finish;
        let (statement, wait, cause) = match end {
            End::Done => (&texts.done, None, None),
            End::Again { attempts, cause } => {
                (&texts.again, Some(self.config.retry.after(*attempts)), Some(cause))
            }
            End::Failed(cause) => (&texts.failed, None, Some(cause)),
            End::NotTried(cause) => (&texts.not_tried, None, Some(cause)),
        };
        let (text, padding) = statement.of(numbers.len());
        let changed = db::on!(tx, connection => {
            let mut query = sqlx::query(text);
            if let Some(wait) = wait {
                query = query.bind(millis(wait));
            }
            if let Some(cause) = cause {
                query = query.bind(cause);
            }
            bind_list!(query.bind(lease), numbers, padding).execute(connection).await?.rows_affected()
        });
        Ok(changed.try_into().unwrap_or(usize::MAX))
    }

    /// Makes the lease last from now on, for those items that are still ours. Says how many they are, and until when.
    pub async fn renew(&self, items: &[Item]) -> Result<(usize, Instant), Error> {
        let mut groups: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for item in items {
            groups.entry(item.lease).or_default().push(item.number);
        }
        let until = Instant::now() + self.config.lease;
        let renewed = self.db.bounded(self.renew_groups(&groups, self.config.lease)).await?;
        Ok((renewed, until))
    }

    async fn renew_groups(&self, groups: &BTreeMap<i64, Vec<i64>>, lease: Duration) -> Result<usize, Error> {
        let mut renewed = 0;
        let mut tx = self.db.begin().await?;
        for (number, items) in groups {
            let (text, padding) = self.finish.renew.of(items.len());
            renewed += db::on!(tx, connection => {
                let query = sqlx::query(text).bind(millis(lease)).bind(*number);
                bind_list!(query, items, padding).execute(connection).await?.rows_affected()
            });
        }
        tx.commit().await?;
        Ok(renewed.try_into().unwrap_or(usize::MAX))
    }
}

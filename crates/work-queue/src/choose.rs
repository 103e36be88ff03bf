//! An operator's decision on many failed items at once.

use std::sync::Arc;

use base::Timestamp;
use db::{Error, ListStatement, bind_list};
use sqlx::AssertSqlSafe;

use crate::Queue;
use crate::item::{FAILED, OPEN, SKIPPED};
use crate::statement::Text;

/// How many items are decided on in one transaction.
const AT_ONCE: usize = 500;

/// Which failed items a decision is about: those that fit everything that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// A part of the cause.
    pub cause: Option<String>,
    /// Failed at this time or later.
    pub since: Option<Timestamp>,
    /// Failed at this time or earlier.
    pub until: Option<Timestamp>,
    pub key: Option<String>,
}

/// What becomes of failed items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// They are tried again from the beginning, and what waits behind them follows.
    Retry,
    /// They are given up, and what waits behind them goes on.
    Skip,
}

#[derive(Clone, Debug)]
pub(crate) struct ChooseTexts {
    count: Arc<str>,
    choose: Arc<str>,
    set: ListStatement,
    bring_forward: ListStatement,
}

impl ChooseTexts {
    pub(crate) fn new(text: &Text) -> Self {
        let fits = format!(
            "FROM {{table}} {{by_state}} WHERE state = {FAILED} AND id > ? AND due_at >= ? AND due_at <= ? \
             AND (? = '' OR item_key = ?) AND INSTR(COALESCE(cause, ''), ?) > 0"
        );
        Self {
            count: text.fixed(&format!("SELECT COUNT(*) {fits}")),
            choose: text.fixed(&format!("SELECT id, key_hash {fits} ORDER BY id LIMIT ?")),
            set: text.list(
                &format!(
                    "UPDATE {{table}} SET state = ?, due_at = {{now}}, attempts = 0, holder = NULL, lease = lease + 1 \
                     WHERE state = {FAILED} AND id IN ({{list}})"
                ),
                AT_ONCE,
            ),
            // Also what is tried again: each key then stands in line in its own order.
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

/// Binds the conditions of a choice, behind the number after which to look.
macro_rules! bind_choice {
    ($query:expr, $after:expr, $choice:expr) => {{
        let choice: &Choice = $choice;
        let (key, cause) = (choice.key.as_deref().unwrap_or(""), choice.cause.as_deref().unwrap_or(""));
        let since = choice.since.map_or(i64::MIN, Timestamp::as_millis);
        let until = choice.until.map_or(i64::MAX, Timestamp::as_millis);
        $query.bind($after).bind(since).bind(until).bind(key).bind(key).bind(cause)
    }};
}

impl Queue {
    /// Counts the failed items that a decision would be about.
    pub async fn count_failed(&self, choice: &Choice) -> Result<u64, Error> {
        let text = AssertSqlSafe(self.choose.count.clone());
        let counting = async {
            let mut connection = self.db.connection().await?;
            let (count,): (i64,) = db::on!(connection, raw => {
                bind_choice!(sqlx::query_as(text), 0_i64, choice).fetch_one(raw).await?
            });
            Ok(count.unsigned_abs())
        };
        self.db.bounded(counting).await
    }

    /// Decides on all failed items that fit, in the order of their numbers. Returns how many there were. An item that fails again
    /// meanwhile is not decided on twice.
    pub async fn decide_failed(&self, choice: &Choice, decision: Decision) -> Result<u64, Error> {
        let (mut decided, mut after) = (0, 0);
        loop {
            // A worker that claims items behind these at this moment may be the other side of a deadlock.
            let deciding = || self.db.bounded(self.decide_some(choice, decision, after));
            let Some((changed, last)) = db::retrying(Error::is_conflict, deciding).await? else {
                return Ok(decided);
            };
            decided += changed;
            after = last;
        }
    }

    /// Decides on the next items. Returns how many, and the last number; none if there are no more.
    async fn decide_some(
        &self,
        choice: &Choice,
        decision: Decision,
        after: i64,
    ) -> Result<Option<(u64, i64)>, Error> {
        let mut tx = self.db.begin().await?;
        let text = AssertSqlSafe(self.choose.choose.clone());
        let found: Vec<(i64, i64)> = db::on!(tx, connection => {
            let query = bind_choice!(sqlx::query_as(text), after, choice).bind(AT_ONCE as i64);
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
        let (text, padding) = self.choose.set.of(numbers.len());
        let changed = db::on!(tx, connection => {
            bind_list!(sqlx::query(text).bind(state), numbers, padding).execute(connection).await?.rows_affected()
        });
        let (text, padding) = self.choose.bring_forward.of(keys.len());
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

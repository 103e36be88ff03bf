//! Decisions about single items and keys that do not come from an attempt: an operator's, or a caller's that owns the key.

use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use db::{Error, ListStatement, Tx};
use sqlx::AssertSqlSafe;

use crate::WorkQueue;
use crate::claim::millis;
use crate::item::{DONE, FAILED, OPEN, SKIPPED, key_hash};
use crate::statement::{ItemRefs, MAX_IDS, StatementBuilder, bind_refs};

/// The item's state does not allow the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    #[error("there is no such item")]
    Unknown,
    #[error("it is finished already")]
    Finished,
    #[error("it has not failed; it is retried automatically")]
    NotFailed,
    #[error("it is not on hold")]
    NotHeld,
}

#[derive(Clone, Debug)]
pub(crate) struct DecideStatements {
    lock_number: ListStatement,
    lock_id: ListStatement,
    set: Arc<str>,
    bring_forward: Arc<str>,
    postpone_key: Arc<str>,
    remove: ListStatement,
}

/// The locked item that a decision is about.
pub(crate) struct LockedItem {
    number: i64,
    pub(crate) state: i32,
    key_hash: i64,
}

impl DecideStatements {
    pub(crate) fn new(text: &StatementBuilder) -> Self {
        let lock = |column: &str| {
            let select = "SELECT id, state, key_hash FROM {table}";
            text.list(&format!("{select} WHERE {column} IN ({{list}}) {{for_update}}"), 1)
        };
        Self {
            lock_number: lock("id"),
            lock_id: lock("item_id"),
            set: text.fixed(
                "UPDATE {table} SET state = ?, due_at = {now} + ?, attempts = 0, holder = NULL, lease = lease + 1 WHERE id = ?",
            ),
            bring_forward: text.fixed(&format!(
                "UPDATE {{table}} SET due_at = created_at WHERE key_hash = ? AND id >= ? AND state = {OPEN} AND holder IS NULL"
            )),
            postpone_key: text.fixed(&format!(
                "UPDATE {{table}} {{by_key}} SET due_at = {{now}} + ? \
                 WHERE key_hash = ? AND item_key = ? AND state = {OPEN} AND holder IS NULL AND due_at < {{now}} + ?"
            )),
            remove: text.list("DELETE FROM {table} WHERE item_id IN ({list})", MAX_IDS),
        }
    }
}

impl WorkQueue {
    /// Reopens a failed item with all its attempts. The items that wait behind it follow.
    pub async fn retry(&self, number: i64) -> Result<Result<(), DecisionError>, Error> {
        self.decide(number, OPEN).await
    }

    /// Skips an unfinished item, so that its key continues without it.
    pub async fn skip(&self, number: i64) -> Result<Result<(), DecisionError>, Error> {
        self.decide(number, SKIPPED).await
    }

    async fn decide(&self, number: i64, state: i32) -> Result<Result<(), DecisionError>, Error> {
        let deciding = async || {
            let mut tx = self.db.begin().await?;
            let item = self.lock(&mut tx, ItemRefs::Numbers(&[number])).await?;
            let decided = self.set_state(&mut tx, item, state, Duration::ZERO).await?;
            tx.commit().await?;
            Ok(decided)
        };
        // A worker that claims the item, or one behind it, at the same time can cause a deadlock.
        db::retry_conflicts(Error::is_conflict, || self.db.bounded(deciding())).await
    }

    /// As [`retry`](Self::retry), by id and in the caller's transaction. The item is due `after` the commit.
    pub async fn retry_in(
        &self,
        tx: &mut Tx,
        id: Uuid,
        after: Duration,
    ) -> Result<Result<(), DecisionError>, Error> {
        let item = self.lock(tx, ItemRefs::Ids(&[id])).await?;
        self.set_state(tx, item, OPEN, after).await
    }

    /// Removes a failed item in the caller's transaction, and unblocks its key. Returns false if there is no such failed item.
    pub async fn remove_in(&self, tx: &mut Tx, id: Uuid) -> Result<bool, Error> {
        let Some(item) = self.lock(tx, ItemRefs::Ids(&[id])).await?.filter(|item| item.state == FAILED)
        else {
            return Ok(false);
        };
        self.remove_items_in(tx, &[id]).await?;
        self.unblock_followers(tx, &item).await?;
        Ok(true)
    }

    /// Removes items in the caller's transaction, whatever their state. Returns how many there were. The outcome of a worker that has
    /// claimed one counts as stale. Items behind a removed failed one are checked again within a minute.
    pub async fn remove_items_in(&self, tx: &mut Tx, ids: &[Uuid]) -> Result<u64, Error> {
        let mut removed = 0;
        for ids in ids.chunks(MAX_IDS) {
            let (text, padding) = self.decide.remove.for_length(ids.len());
            removed += db::on!(tx, connection => {
                bind_refs!(sqlx::query(text), ItemRefs::Ids(ids), padding).execute(connection).await?.rows_affected()
            });
        }
        Ok(removed)
    }

    /// Postpones the pending items of a key that would be due earlier. Returns how many items changed. Claimed items and later pushes
    /// are not affected.
    pub async fn postpone_key(&self, key: &str, until_after: Duration) -> Result<u64, Error> {
        let postponing = async {
            let mut tx = self.db.begin().await?;
            let (text, wait) = (AssertSqlSafe(self.decide.postpone_key.clone()), millis(until_after));
            let changed = db::on!(tx, connection => {
                let query = sqlx::query(text).bind(wait).bind(key_hash(key)).bind(key).bind(wait);
                query.execute(connection).await?.rows_affected()
            });
            tx.commit().await?;
            Ok(changed)
        };
        self.db.bounded(postponing).await
    }

    pub(crate) async fn lock(&self, tx: &mut Tx, item: ItemRefs<'_>) -> Result<Option<LockedItem>, Error> {
        let statement = match item {
            ItemRefs::Numbers(_) => &self.decide.lock_number,
            ItemRefs::Ids(_) => &self.decide.lock_id,
        };
        let (text, padding) = statement.for_length(item.len());
        let found: Option<(i64, i32, i64)> = db::on!(tx, connection => {
            bind_refs!(sqlx::query_as(text), item, padding).fetch_optional(connection).await?
        });
        Ok(found.map(|(number, state, key_hash)| LockedItem { number, state, key_hash }))
    }

    /// Sets the state of an unfinished item, with all its attempts, and unblocks the items behind it.
    pub(crate) async fn set_state(
        &self,
        tx: &mut Tx,
        item: Option<LockedItem>,
        state: i32,
        after: Duration,
    ) -> Result<Result<(), DecisionError>, Error> {
        let item = match item {
            None => return Ok(Err(DecisionError::Unknown)),
            Some(LockedItem { state: DONE | SKIPPED, .. }) => return Ok(Err(DecisionError::Finished)),
            Some(LockedItem { state: OPEN, .. }) if state == OPEN => {
                return Ok(Err(DecisionError::NotFailed));
            }
            Some(item) => item,
        };
        let text = AssertSqlSafe(self.decide.set.clone());
        db::on!(tx, connection => {
            sqlx::query(text).bind(state).bind(millis(after)).bind(item.number).execute(connection).await?;
        });
        // An item with a delay stays behind its followers in line; claims defer them together with it.
        let first = if after.is_zero() { item.number } else { item.number + 1 };
        self.unblock_followers(tx, &LockedItem { number: first, ..item }).await?;
        Ok(Ok(()))
    }

    /// Moves the items of a key, from a number on, back to their places in line, so that claims take them in order without deferring
    /// them. Wakes a worker after the commit.
    async fn unblock_followers(&self, tx: &mut Tx, item: &LockedItem) -> Result<(), Error> {
        tx.wake_after_commit(&self.pushed);
        if !self.is_ordered {
            return Ok(());
        }
        let text = AssertSqlSafe(self.decide.bring_forward.clone());
        db::on!(tx, connection => {
            sqlx::query(text).bind(item.key_hash).bind(item.number).execute(connection).await?;
        });
        Ok(())
    }
}

//! Decisions on items from outside of their attempts: an operator's, or those of somebody who knows more of a whole key.

use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use db::{Error, ListStatement, Tx};
use sqlx::AssertSqlSafe;

use crate::Queue;
use crate::claim::millis;
use crate::item::{DONE, FAILED, OPEN, SKIPPED, key_hash};
use crate::statement::{IDS_AT_ONCE, Names, Text, bind_names};

/// The item is not in a state for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("there is no such item")]
    Unknown,
    #[error("it is finished already")]
    Finished,
    #[error("it has not failed; it is tried again by itself")]
    NotFailed,
    #[error("it is not stopped")]
    NotHeld,
}

#[derive(Clone, Debug)]
pub(crate) struct DecideTexts {
    lock_number: ListStatement,
    lock_id: ListStatement,
    set: Arc<str>,
    bring_forward: Arc<str>,
    put_off: Arc<str>,
    remove: ListStatement,
}

/// What a decision is about, locked.
pub(crate) struct Locked {
    number: i64,
    pub(crate) state: i32,
    key_hash: i64,
}

impl DecideTexts {
    pub(crate) fn new(text: &Text) -> Self {
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
            put_off: text.fixed(&format!(
                "UPDATE {{table}} {{by_key}} SET due_at = {{now}} + ? \
                 WHERE key_hash = ? AND item_key = ? AND state = {OPEN} AND holder IS NULL AND due_at < {{now}} + ?"
            )),
            remove: text.list("DELETE FROM {table} WHERE item_id IN ({list})", IDS_AT_ONCE),
        }
    }
}

impl Queue {
    /// Has an item that has failed tried again from the beginning, and what waits behind it after it.
    pub async fn retry(&self, number: i64) -> Result<Result<(), Unfit>, Error> {
        self.decide(number, OPEN).await
    }

    /// Gives up an item that is not finished, so that its key goes on without it.
    pub async fn skip(&self, number: i64) -> Result<Result<(), Unfit>, Error> {
        self.decide(number, SKIPPED).await
    }

    async fn decide(&self, number: i64, state: i32) -> Result<Result<(), Unfit>, Error> {
        let deciding = async || {
            let mut tx = self.db.begin().await?;
            let item = self.lock(&mut tx, Names::Numbers(&[number])).await?;
            let decided = self.set(&mut tx, item, state, Duration::ZERO).await?;
            tx.commit().await?;
            Ok(decided)
        };
        // A worker that claims the item, or one behind it, at this moment may be the other side of a deadlock.
        db::retrying(Error::is_conflict, || self.db.bounded(deciding())).await
    }

    /// As [`retry`](Self::retry), by the item's id and in the caller's transaction. It is due some time after that.
    pub async fn retry_in(&self, tx: &mut Tx, id: Uuid, after: Duration) -> Result<Result<(), Unfit>, Error> {
        let item = self.lock(tx, Names::Ids(&[id])).await?;
        self.set(tx, item, OPEN, after).await
    }

    /// Removes an item that has failed, in the caller's transaction, and lets its key go on. Says whether there was one.
    pub async fn remove_in(&self, tx: &mut Tx, id: Uuid) -> Result<bool, Error> {
        let Some(item) = self.lock(tx, Names::Ids(&[id])).await?.filter(|item| item.state == FAILED) else {
            return Ok(false);
        };
        self.remove_items_in(tx, &[id]).await?;
        self.let_go_on(tx, &item).await?;
        Ok(true)
    }

    /// Removes items in the caller's transaction, whatever their state is, and says how many there were. Whoever is at work on one
    /// is told that it came too late. What waits behind one that has failed is looked at within a minute.
    pub async fn remove_items_in(&self, tx: &mut Tx, ids: &[Uuid]) -> Result<u64, Error> {
        let mut removed = 0;
        for ids in ids.chunks(IDS_AT_ONCE) {
            let (text, padding) = self.decide.remove.of(ids.len());
            removed += db::on!(tx, connection => {
                bind_names!(sqlx::query(text), Names::Ids(ids), padding).execute(connection).await?.rows_affected()
            });
        }
        Ok(removed)
    }

    /// Puts off everything of a key that waits and would be due earlier. Says how many items that were. What somebody has claimed
    /// is theirs, and what is pushed later comes in its own time.
    pub async fn put_off(&self, key: &str, until_after: Duration) -> Result<u64, Error> {
        let putting_off = async {
            let mut tx = self.db.begin().await?;
            let (text, wait) = (AssertSqlSafe(self.decide.put_off.clone()), millis(until_after));
            let changed = db::on!(tx, connection => {
                let query = sqlx::query(text).bind(wait).bind(key_hash(key)).bind(key).bind(wait);
                query.execute(connection).await?.rows_affected()
            });
            tx.commit().await?;
            Ok(changed)
        };
        self.db.bounded(putting_off).await
    }

    pub(crate) async fn lock(&self, tx: &mut Tx, name: Names<'_>) -> Result<Option<Locked>, Error> {
        let statement = match name {
            Names::Numbers(_) => &self.decide.lock_number,
            Names::Ids(_) => &self.decide.lock_id,
        };
        let (text, padding) = statement.of(name.len());
        let found: Option<(i64, i32, i64)> = db::on!(tx, connection => {
            bind_names!(sqlx::query_as(text), name, padding).fetch_optional(connection).await?
        });
        Ok(found.map(|(number, state, key_hash)| Locked { number, state, key_hash }))
    }

    /// Has an item begin anew, or gives it up.
    pub(crate) async fn set(
        &self,
        tx: &mut Tx,
        item: Option<Locked>,
        state: i32,
        after: Duration,
    ) -> Result<Result<(), Unfit>, Error> {
        let item = match item {
            None => return Ok(Err(Unfit::Unknown)),
            Some(Locked { state: DONE | SKIPPED, .. }) => return Ok(Err(Unfit::Finished)),
            Some(Locked { state: OPEN, .. }) if state == OPEN => return Ok(Err(Unfit::NotFailed)),
            Some(item) => item,
        };
        let text = AssertSqlSafe(self.decide.set.clone());
        db::on!(tx, connection => {
            sqlx::query(text).bind(state).bind(millis(after)).bind(item.number).execute(connection).await?;
        });
        // An item that is due only later stays behind its followers in line; they are put off with it.
        let first = if after.is_zero() { item.number } else { item.number + 1 };
        self.let_go_on(tx, &Locked { number: first, ..item }).await?;
        Ok(Ok(()))
    }

    /// Puts the items of a key from a number on back to their places in line, in which they follow each other without being put
    /// off, and wakes a worker once the transaction is committed.
    async fn let_go_on(&self, tx: &mut Tx, item: &Locked) -> Result<(), Error> {
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

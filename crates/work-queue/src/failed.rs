//! What an item that has failed for good entails, in the transaction that says so.

use std::fmt::Debug;
use std::time::Duration;

use base::Timestamp;
use db::{Error, Tx};
use tokio::time::Instant;

use crate::item::uuid;
use crate::statement::{Names, bind_names};
use crate::{Item, Queue};

/// An item that is marked as failed, and why. Its payload is the one that is stored.
#[derive(Clone, Copy, Debug)]
pub struct FailedItem<'a> {
    pub item: &'a Item,
    pub cause: &'a str,
}

/// Writes what the failure of items entails: see [`Queue::on_failed`].
pub trait OnFailed: Debug + Send + Sync {
    /// Adds to the transaction that marks this item as failed, by [`Tx::insert_at_commit`] and the like. It is asked for exactly
    /// those that are changed by it, and once more in another one if this is not committed.
    fn failed(&self, tx: &mut Tx, failed: FailedItem<'_>);

    /// Notes that the transaction was committed, once for each item: to log it, for example.
    fn committed(&self, _failed: FailedItem<'_>) {}
}

db::row! {
    struct FailedRow {
        id: i64,
        item_id: Vec<u8>,
        user_id: Vec<u8>,
        item_key: String,
        key_hash: i64,
        payload: Vec<u8>,
        attempts: i32,
        created_at: i64,
    }
}

impl Queue {
    /// Reads and locks those of the items that are still ours, before they are marked as failed or split.
    pub(crate) async fn lock_ours(
        &self,
        tx: &mut Tx,
        names: Names<'_>,
        lease: i64,
    ) -> Result<Vec<Item>, Error> {
        let (text, padding) = self.finish.of(names).ours.of(names.len());
        let rows: Vec<FailedRow> = db::on!(tx, connection => {
            bind_names!(sqlx::query_as(text).bind(lease), names, padding).fetch_all(connection).await?
        });
        let item = |row: FailedRow| Item {
            number: row.id,
            id: uuid(&row.item_id),
            user: uuid(&row.user_id),
            key: row.item_key,
            payload: row.payload,
            attempts: row.attempts.unsigned_abs(),
            created: Timestamp::from_millis(row.created_at),
            age: Duration::ZERO,
            claimed: Instant::now(),
            lease,
            key_hash: row.key_hash,
        };
        Ok(rows.into_iter().map(item).collect())
    }

    /// Calls [`OnFailed::committed`] for each of these items.
    pub(crate) fn note_committed(&self, items: &[Item], cause: &str) {
        let Some(hook) = &self.on_failed else { return };
        items.iter().for_each(|item| hook.committed(FailedItem { item, cause }));
    }

    /// Has written what the failure of these items entails, one after the other: they are rare, may be large, and a server takes
    /// messages up to some size only.
    pub(crate) async fn tell_failed(&self, tx: &mut Tx, items: &[Item], cause: &str) -> Result<(), Error> {
        let Some(hook) = &self.on_failed else { return Ok(()) };
        for item in items {
            hook.failed(tx, FailedItem { item, cause });
            tx.write().await?;
        }
        Ok(())
    }
}

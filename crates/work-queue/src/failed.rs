//! The hook for items that failed for good, in the transaction that marks them.

use std::fmt::Debug;
use std::time::Duration;

use base::Timestamp;
use db::{Error, Tx};
use tokio::time::Instant;

use crate::item::uuid;
use crate::statement::{ItemRefs, bind_refs};
use crate::{Item, WorkQueue};

/// An item that is being marked as failed, with its stored payload, and the cause.
#[derive(Clone, Copy, Debug)]
pub struct FailedItem<'a> {
    pub item: &'a Item,
    pub cause: &'a str,
}

/// Records the consequences of failed items. See [`WorkQueue::with_failure_hook`].
pub trait FailureHook: Debug + Send + Sync {
    /// Adds writes to the transaction that marks this item as failed, for example by [`Tx::insert_at_commit`]. Called once per changed
    /// item, and again in the next transaction if this one does not commit.
    fn record_failure(&self, tx: &mut Tx, failed: FailedItem<'_>);

    /// Runs once per item after the transaction has committed, for example to log the failure.
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

impl WorkQueue {
    /// Reads and locks those items that still have this lease number, before they are marked as failed or split.
    pub(crate) async fn lock_current(
        &self,
        tx: &mut Tx,
        refs: ItemRefs<'_>,
        lease: i64,
    ) -> Result<Vec<Item>, Error> {
        let (text, padding) = self.finish.transitions(refs).lock_current.for_length(refs.len());
        let rows: Vec<FailedRow> = db::on!(tx, connection => {
            bind_refs!(sqlx::query_as(text).bind(lease), refs, padding).fetch_all(connection).await?
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

    /// Calls [`FailureHook::committed`] for each of these items.
    pub(crate) fn failures_committed(&self, items: &[Item], cause: &str) {
        let Some(hook) = &self.failure_hook else { return };
        items.iter().for_each(|item| hook.committed(FailedItem { item, cause }));
    }

    /// Calls [`FailureHook::record_failure`] for each of these items and writes after each. Failures are rare and may be large, and the
    /// server limits the size of a message.
    pub(crate) async fn record_failures(
        &self,
        tx: &mut Tx,
        items: &[Item],
        cause: &str,
    ) -> Result<(), Error> {
        let Some(hook) = &self.failure_hook else { return Ok(()) };
        for item in items {
            hook.record_failure(tx, FailedItem { item, cause });
            tx.flush().await?;
        }
        Ok(())
    }
}

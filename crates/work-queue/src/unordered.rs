//! Unordered queues, and the operations that only they allow.

use std::ops::Deref;

use base::id::ProcessId;
use db::{Tx, Value};

use crate::queue::{CLAIMED_AT_PUSH, row};
use crate::{NewItem, WorkQueue};

/// An [unordered](WorkQueue::unordered) queue. In an ordered queue, an item claimed at its push could overtake others, and a held item
/// would block its key without being listed as blocked. So neither operation compiles there:
///
/// ```
/// # async fn example(queue: work_queue::WorkQueue, id: base::id::Uuid) -> Result<(), db::Error> {
/// let held = queue.unordered().hold(id).await?;
/// # drop(held);
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # async fn example(queue: work_queue::WorkQueue, id: base::id::Uuid) -> Result<(), db::Error> {
/// let held = queue.hold(id).await?;
/// # drop(held);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Unordered(WorkQueue);

impl Unordered {
    pub(crate) fn new(queue: WorkQueue) -> Self {
        Self(queue)
    }

    /// Adds items that `holder` has claimed from the start. After the commit it handles them without a claim, and records the outcome
    /// with [`finish_claimed`](WorkQueue::finish_claimed). The lease begins with the commit. When it expires, any worker can claim
    /// the items.
    pub fn push_claimed(&self, tx: &mut Tx, holder: ProcessId, items: &[NewItem<'_>]) {
        let until = Value::After(self.config.lease);
        let rows = items.iter().map(|item| row(item, until, CLAIMED_AT_PUSH, holder.as_uuid().into()));
        tx.insert_at_commit(&self.push, rows);
    }
}

impl Deref for Unordered {
    type Target = WorkQueue;

    fn deref(&self) -> &WorkQueue {
        &self.0
    }
}

impl From<Unordered> for WorkQueue {
    fn from(Unordered(queue): Unordered) -> Self {
        queue
    }
}

//! A queue without order, and what is possible only there.

use std::ops::Deref;

use base::id::ProcessId;
use db::{Tx, Value};

use crate::queue::{BORN_CLAIMED, row};
use crate::{New, Queue};

/// A queue [without order](Queue::unordered). In an ordered queue an item that its pusher claims might overtake others, and one that
/// is held would block its key without being shown as blocked, so neither compiles:
///
/// ```
/// # async fn example(queue: work_queue::Queue, id: base::id::Uuid) -> Result<(), db::Error> {
/// let held = queue.unordered().hold(id).await?;
/// # drop(held);
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # async fn example(queue: work_queue::Queue, id: base::id::Uuid) -> Result<(), db::Error> {
/// let held = queue.hold(id).await?;
/// # drop(held);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Unordered(Queue);

impl Unordered {
    pub(crate) fn new(queue: Queue) -> Self {
        Self(queue)
    }

    /// Adds items that the pusher has claimed from the start. Once the transaction is committed the pusher does them at once, without
    /// a claim, and reports the outcome by [`finish_claimed`](Queue::finish_claimed). If it does not before the lease ends, which
    /// begins with the commit, any worker claims them.
    pub fn push_claimed(&self, tx: &mut Tx, holder: ProcessId, items: &[New<'_>]) {
        let until = Value::After(self.config.lease);
        let rows = items.iter().map(|item| row(item, until, BORN_CLAIMED, holder.as_uuid().into()));
        tx.insert_at_commit(&self.push, rows);
    }
}

impl Deref for Unordered {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0
    }
}

impl From<Unordered> for Queue {
    fn from(Unordered(queue): Unordered) -> Self {
        queue
    }
}

//! Locks within one process: the same rows in memory, each with a first-in, first-out queue.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Clock, Timestamp};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::plan::{Mode, Plan, Row};
use crate::{OwnedTarget, Target};

/// Stands for the whole 32-bit range of the hash: in memory, buckets cost nothing until they are locked.
pub(crate) const BUCKETS: u32 = 0;

#[derive(Clone, Debug)]
pub(crate) struct InProcess(Arc<Shared>);

/// A request that waits for a row in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProcessWait {
    pub row: Row,
    /// The target whose lock needs the row. None only if the request named no target for it.
    pub target: Option<OwnedTarget>,
    pub since: Timestamp,
    pub holders: RowHolders,
    /// How many requests wait in front of it.
    pub ahead: usize,
}

/// How a row is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowHolders {
    /// By one request, for itself.
    Exclusive,
    /// By this many requests together.
    Shared(usize),
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    /// The rows that are held or waited for.
    table: Mutex<HashMap<Row, BucketState>>,
    /// The source of [`Waiter::id`].
    next_waiter: AtomicU64,
    last_token: AtomicU64,
}

#[derive(Debug, Default)]
struct BucketState {
    holders: Holders,
    queue: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Holders {
    #[default]
    None,
    Shared(usize),
    Exclusive,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    mode: Mode,
    target: Option<OwnedTarget>,
    since: Timestamp,
    granted: oneshot::Sender<()>,
}

/// Rows that are held. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct HeldRows {
    shared: Arc<Shared>,
    rows: Vec<Row>,
}

/// The deadline passed before all rows were granted.
#[derive(Debug)]
pub(crate) struct TimedOut;

impl InProcess {
    /// Creates the lock table. Its fencing tokens start at the current time in microseconds, so they exceed those of an earlier process
    /// unless that one issued more than one per microsecond.
    pub(crate) fn new(clock: Clock) -> Self {
        let micros = u64::try_from(clock.now().as_millis()).unwrap_or(0).saturating_mul(1_000);
        Self(Arc::new(Shared {
            clock,
            table: Mutex::default(),
            next_waiter: AtomicU64::new(0),
            last_token: AtomicU64::new(micros),
        }))
    }

    /// Acquires the rows of the plan, in order. `targets` are the targets of the plan.
    pub(crate) async fn acquire(
        &self,
        plan: &Plan,
        targets: &[Target<'_>],
        deadline: Instant,
    ) -> Result<HeldRows, TimedOut> {
        let mut held = HeldRows { shared: self.0.clone(), rows: Vec::with_capacity(plan.rows().len()) };
        for (row, mode) in plan.rows() {
            if let Some(request) = self.0.request(*row, *mode, targets) {
                request.granted_by(deadline).await?;
            }
            held.rows.push(*row);
        }
        Ok(held)
    }

    /// Returns the requests that wait, the longest waiting first.
    pub(crate) fn waits(&self) -> Vec<InProcessWait> {
        let table = self.0.table();
        let mut waits = Vec::new();
        for (row, bucket) in table.iter() {
            let holders = match bucket.holders {
                Holders::Exclusive => RowHolders::Exclusive,
                Holders::Shared(count) => RowHolders::Shared(count),
                // A row with waiters has a holder.
                Holders::None => continue,
            };
            waits.extend(bucket.queue.iter().enumerate().map(|(ahead, waiter)| InProcessWait {
                row: *row,
                target: waiter.target.clone(),
                since: waiter.since,
                holders,
                ahead,
            }));
        }
        drop(table);
        waits.sort_by_key(|wait| (wait.since, wait.row, wait.ahead));
        waits
    }

    /// Returns how many rows are held or waited for.
    pub(crate) fn rows_in_use(&self) -> usize {
        self.0.table().len()
    }
}

impl HeldRows {
    pub(crate) fn next_token(&self) -> u64 {
        self.shared.last_token.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Drop for HeldRows {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        for row in &self.rows {
            table.release(*row);
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, HashMap<Row, BucketState>> {
        // No code under this lock can panic half-way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the row and returns none, or joins its queue.
    fn request(self: &Arc<Self>, row: Row, mode: Mode, targets: &[Target<'_>]) -> Option<QueuedRequest> {
        let mut table = self.table();
        let bucket = table.entry(row).or_default();
        if bucket.queue.is_empty() && bucket.holders.try_add(mode) {
            return None;
        }
        let id = self.next_waiter.fetch_add(1, Ordering::Relaxed);
        let (granted, receiver) = oneshot::channel();
        let target = targets.iter().find(|target| target.needs(row, BUCKETS)).copied().map(OwnedTarget::from);
        let since = self.clock.now();
        bucket.queue.push_back(Waiter { id, mode, target, since, granted });
        Some(QueuedRequest { shared: self.clone(), row, id, granted: Some(receiver) })
    }
}

/// A request in the queue of a row. Dropping it leaves the queue, or releases the row if it was granted in the meantime.
struct QueuedRequest {
    shared: Arc<Shared>,
    row: Row,
    id: u64,
    /// None once the grant was received.
    granted: Option<oneshot::Receiver<()>>,
}

impl QueuedRequest {
    async fn granted_by(mut self, deadline: Instant) -> Result<(), TimedOut> {
        if let Some(granted) = &mut self.granted
            && timeout_at(deadline, granted).await.is_err()
        {
            return Err(TimedOut);
        }
        self.granted = None;
        Ok(())
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if self.granted.is_none() {
            return;
        }
        let mut table = self.shared.table();
        let queue = table.get_mut(&self.row).map(|bucket| &mut bucket.queue);
        let position = queue.as_ref().and_then(|queue| queue.iter().position(|waiter| waiter.id == self.id));
        match (queue, position) {
            (Some(queue), Some(position)) => {
                queue.remove(position);
                table.grant_waiters(self.row);
            }
            // Only a grant removes our waiter, so the row is ours to release.
            _ => table.release(self.row),
        }
    }
}

trait LockTable {
    fn release(&mut self, row: Row);
    fn grant_waiters(&mut self, row: Row);
}

impl LockTable for HashMap<Row, BucketState> {
    fn release(&mut self, row: Row) {
        if let Some(bucket) = self.get_mut(&row) {
            bucket.holders.remove_one();
            self.grant_waiters(row);
        }
    }

    /// Grants the row to waiters from the front of the queue while they are compatible. Removes a row without holders or waiters.
    fn grant_waiters(&mut self, row: Row) {
        let Some(bucket) = self.get_mut(&row) else { return };
        while let Some(first) = bucket.queue.front()
            && bucket.holders.try_add(first.mode)
        {
            if let Some(first) = bucket.queue.pop_front() {
                // If the waiter is gone, its `QueuedRequest` releases the row on drop.
                let _ = first.granted.send(());
            }
        }
        if bucket.holders == Holders::None {
            self.remove(&row);
        }
    }
}

impl Holders {
    /// Adds a holder if its mode is compatible with the current ones.
    fn try_add(&mut self, mode: Mode) -> bool {
        *self = match (*self, mode) {
            (Self::None, Mode::Exclusive) => Self::Exclusive,
            (Self::None, Mode::Shared) => Self::Shared(1),
            (Self::Shared(count), Mode::Shared) => Self::Shared(count + 1),
            _ => return false,
        };
        true
    }

    fn remove_one(&mut self) {
        *self = match *self {
            Self::Shared(count) if count > 1 => Self::Shared(count - 1),
            _ => Self::None,
        };
    }
}

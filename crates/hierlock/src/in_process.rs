//! Locks of one process: the same rows in memory, with a queue each, first come, first served.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Timestamp;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::plan::{Mode, Plan, Row};

/// Buckets cost nothing here, so there are as many as the hash can tell apart (0 stands for them).
pub(crate) const BUCKETS: u32 = 0;

#[derive(Clone, Debug)]
pub(crate) struct InProcess(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The rows that somebody holds or waits for.
    table: Mutex<HashMap<Row, Entry>>,
    /// Tells waiters apart.
    arrivals: AtomicU64,
    last_token: AtomicU64,
}

#[derive(Debug, Default)]
struct Entry {
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
    arrival: u64,
    mode: Mode,
    granted: oneshot::Sender<()>,
}

/// Rows that are held. Dropping it lets them go.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    rows: Vec<Row>,
}

/// The time was over.
#[derive(Debug)]
pub(crate) struct TooLate;

impl InProcess {
    /// Makes locks whose fencing tokens begin at `now`. Tokens of an earlier process were smaller, unless it gave out more than one
    /// per microsecond.
    pub(crate) fn new(now: Timestamp) -> Self {
        let micros = u64::try_from(now.as_millis()).unwrap_or(0).saturating_mul(1_000);
        Self(Arc::new(Shared {
            table: Mutex::default(),
            arrivals: AtomicU64::new(0),
            last_token: AtomicU64::new(micros),
        }))
    }

    pub(crate) async fn acquire(&self, plan: &Plan, deadline: Instant) -> Result<Held, TooLate> {
        let mut held = Held { shared: self.0.clone(), rows: Vec::with_capacity(plan.rows().len()) };
        for (row, mode) in plan.rows() {
            if let Some(waiting) = self.0.ask(*row, *mode) {
                waiting.granted_by(deadline).await?;
            }
            held.rows.push(*row);
        }
        Ok(held)
    }

    /// Rows that somebody holds or waits for.
    pub(crate) fn busy_rows(&self) -> usize {
        self.0.table().len()
    }
}

impl Held {
    pub(crate) fn next_token(&self) -> u64 {
        self.shared.last_token.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        for row in &self.rows {
            table.release(*row);
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, HashMap<Row, Entry>> {
        // Nothing in here panics half-way.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the row, or a place in its queue.
    fn ask(self: &Arc<Self>, row: Row, mode: Mode) -> Option<Waiting> {
        let mut table = self.table();
        let entry = table.entry(row).or_default();
        if entry.queue.is_empty() && entry.holders.admit(mode) {
            return None;
        }
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let (granted, word) = oneshot::channel();
        entry.queue.push_back(Waiter { arrival, mode, granted });
        Some(Waiting { shared: self.clone(), row, arrival, word: Some(word) })
    }
}

/// A place in a queue. Dropping it gives it up, or gives back what was granted at the last moment.
struct Waiting {
    shared: Arc<Shared>,
    row: Row,
    arrival: u64,
    /// None once the row is ours to keep.
    word: Option<oneshot::Receiver<()>>,
}

impl Waiting {
    async fn granted_by(mut self, deadline: Instant) -> Result<(), TooLate> {
        if let Some(word) = &mut self.word
            && timeout_at(deadline, word).await.is_err()
        {
            return Err(TooLate);
        }
        self.word = None;
        Ok(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.word.is_none() {
            return;
        }
        let mut table = self.shared.table();
        let queue = table.get_mut(&self.row).map(|entry| &mut entry.queue);
        let place =
            queue.as_ref().and_then(|queue| queue.iter().position(|waiter| waiter.arrival == self.arrival));
        match (queue, place) {
            (Some(queue), Some(place)) => {
                queue.remove(place);
                table.serve(self.row);
            }
            // Nobody removes a waiter but us and whoever grants.
            _ => table.release(self.row),
        }
    }
}

trait Table {
    fn release(&mut self, row: Row);
    fn serve(&mut self, row: Row);
}

impl Table for HashMap<Row, Entry> {
    fn release(&mut self, row: Row) {
        if let Some(entry) = self.get_mut(&row) {
            entry.holders.leave();
            self.serve(row);
        }
    }

    /// Lets in whoever is first in the queue and may come in, and forgets rows that nobody wants.
    fn serve(&mut self, row: Row) {
        let Some(entry) = self.get_mut(&row) else { return };
        while let Some(first) = entry.queue.front()
            && entry.holders.admit(first.mode)
        {
            if let Some(first) = entry.queue.pop_front() {
                // One who has left meanwhile finds that it was let in, and leaves once more.
                let _ = first.granted.send(());
            }
        }
        if entry.holders == Holders::None {
            self.remove(&row);
        }
    }
}

impl Holders {
    /// One more, if that goes together.
    fn admit(&mut self, mode: Mode) -> bool {
        *self = match (*self, mode) {
            (Self::None, Mode::Exclusive) => Self::Exclusive,
            (Self::None, Mode::Shared) => Self::Shared(1),
            (Self::Shared(count), Mode::Shared) => Self::Shared(count + 1),
            _ => return false,
        };
        true
    }

    fn leave(&mut self) {
        *self = match *self {
            Self::Shared(count) if count > 1 => Self::Shared(count - 1),
            _ => Self::None,
        };
    }
}

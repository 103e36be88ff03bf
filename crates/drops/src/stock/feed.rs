//! The stocks that somebody watches in this process.
//!
//! # Invariants
//! - **A watched drop costs one subscription, one task and one channel per process**, however many watchers it has. Each change is one
//!   message to the process, and the watchers share it.
//! - **Watchers see versions that only grow**, and at most one update per `min_interval`: of those in between they see the last.
//! - **What a message does not say, SQL does**: the stock is read at the first watch, after a gap, and every `sync_interval`.
//!
//! # Failure modes
//! While Redis is away, watchers see what each full sync reads. While SQL is away, they see the last version that was known.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use live::{Live, Received};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Stock;
use super::metrics::StockMetrics;
use super::publish::LiveOptions;
use super::snapshot::{Changed, Snapshot};
use crate::DropId;
use crate::error::Error;

/// Watches stocks for this process. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct StockFeed(Arc<Inner>);

struct Inner {
    live: Live,
    stock: Stock,
    options: LiveOptions,
    metrics: StockMetrics,
    /// The drops that have a task.
    watched: Mutex<HashMap<DropId, Arc<watch::Sender<Known>>>>,
}

/// What is known of a watched stock.
#[derive(Clone, Debug)]
enum Known {
    /// The first read is under way.
    Nothing,
    Snapshot(Snapshot),
    /// The first read failed. There is no later one.
    Failed(Arc<Error>),
}

/// One watcher of a stock.
#[derive(Debug)]
pub struct StockWatch {
    known: watch::Receiver<Known>,
    seen: Snapshot,
}

impl StockFeed {
    /// Clones of one feed share their subscriptions, so a process has one.
    pub fn new(live: Live, stock: Stock, options: LiveOptions, metrics: StockMetrics) -> Self {
        Self(Arc::new(Inner { live, stock, options, metrics, watched: Mutex::default() }))
    }

    /// Watches the stock of a drop. The first watcher of a drop waits for the subscription and a read of SQL; the others share both.
    ///
    /// Fails with [`Error::NoSuchDrop`], or if SQL cannot be read.
    pub async fn watch(&self, drop: DropId) -> Result<StockWatch, Error> {
        let mut known = self.open(drop);
        let started = known.wait_for(|known| !matches!(known, Known::Nothing)).await;
        let first = started.map_err(|_| Error::NoAnswer)?.clone();
        match first {
            Known::Snapshot(seen) => Ok(StockWatch { known, seen }),
            Known::Failed(error) => match *error {
                Error::NoSuchDrop(drop) => Err(Error::NoSuchDrop(drop)),
                _ => Err(Error::Batch(error)),
            },
            Known::Nothing => Err(Error::NoAnswer),
        }
    }

    /// Returns a receiver of a drop's channel. Starts the drop's task if there is none.
    fn open(&self, drop: DropId) -> watch::Receiver<Known> {
        match self.watched().entry(drop) {
            Entry::Occupied(watched) => watched.get().subscribe(),
            Entry::Vacant(vacant) => {
                let (sender, receiver) = watch::channel(Known::Nothing);
                let sender = vacant.insert(Arc::new(sender)).clone();
                tokio::spawn(self.clone().follow(drop, sender));
                receiver
            }
        }
    }

    /// Follows the stock of a drop until nobody watches it.
    async fn follow(self, drop: DropId, sender: Arc<watch::Sender<Known>>) {
        let Inner { live, options, metrics, .. } = &*self.0;
        let mut subscription = live.subscribe::<Changed>(drop).await;
        // After the subscription: what was published before is in SQL, and what comes later is received.
        let mut newest = match self.read(drop).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.watched().remove(&drop);
                sender.send_replace(Known::Failed(Arc::new(error)));
                return;
            }
        };
        sender.send_replace(Known::Snapshot(newest));
        let (mut shown, mut shown_at, mut read_at) = (newest.version, Instant::now(), Instant::now());
        let mut sync_at = read_at + options.sync_interval;
        loop {
            tokio::select! {
                received = subscription.next() => match received {
                    Received::Message(Changed(snapshot)) => {
                        metrics.received();
                        newest = newest.or_newer(snapshot);
                    }
                    Received::Gap => sync_at = sync_at.min(read_at + options.min_interval),
                },
                () = sleep_until(shown_at + options.min_interval), if newest.version > shown => {
                    (shown, shown_at) = (newest.version, Instant::now());
                    sender.send_replace(Known::Snapshot(newest));
                }
                () = sleep_until(sync_at) => {
                    if self.close_unless_watched(drop, &sender) {
                        return;
                    }
                    read_at = Instant::now();
                    sync_at = read_at + options.sync_interval;
                    match self.read(drop).await {
                        Ok(snapshot) => newest = newest.or_newer(snapshot),
                        Err(error) => tracing::warn!(
                            outage = "sql", %drop, cause = base::error::chain(&error),
                            "a watched stock cannot be read; its watchers see the last known version"
                        ),
                    }
                }
            }
        }
    }

    async fn read(&self, drop: DropId) -> Result<Snapshot, Error> {
        self.0.metrics.read();
        self.0.stock.snapshot(drop).await
    }

    /// Ends the watching of a drop that has no watcher. A watcher that comes later starts it anew.
    fn close_unless_watched(&self, drop: DropId, sender: &watch::Sender<Known>) -> bool {
        let mut watched = self.watched();
        let is_unwatched = sender.receiver_count() == 0;
        if is_unwatched {
            watched.remove(&drop);
        }
        is_unwatched
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<DropId, Arc<watch::Sender<Known>>>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StockWatch {
    /// Returns the newest known snapshot without waiting.
    pub fn current(&mut self) -> Snapshot {
        let known = self.known.borrow_and_update().clone();
        self.see(&known);
        self.seen
    }

    /// Waits for a newer snapshot than the last one that this watcher returned. Cancel safe. Returns none when the process ends.
    pub async fn changed(&mut self) -> Option<Snapshot> {
        self.newer_than(self.seen.version).await
    }

    /// Waits for a snapshot with a larger version than `version`: at once if it is known already. Cancel safe. Returns none when the
    /// process ends.
    pub async fn newer_than(&mut self, version: i64) -> Option<Snapshot> {
        let is_newer =
            |known: &Known| matches!(known, Known::Snapshot(snapshot) if snapshot.version > version);
        let known = self.known.wait_for(is_newer).await.ok()?.clone();
        self.see(&known);
        Some(self.seen)
    }

    fn see(&mut self, known: &Known) {
        if let Known::Snapshot(snapshot) = known {
            self.seen = *snapshot;
        }
    }
}

impl fmt::Debug for StockFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StockFeed").field("options", &self.0.options).finish_non_exhaustive()
    }
}

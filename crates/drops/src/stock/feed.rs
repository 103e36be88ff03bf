//! The stocks that players watch in this process.
//!
//! # Invariants
//! - **A watched drop costs one subscription, one task and one channel per process**, however many watchers it has. A process receives each
//!   change once, and its watchers share it.
//! - **Watchers see increasing versions only**, and at most one update per `min_interval`: intermediate versions are skipped.
//! - **SQL makes up for missed messages**: the stock is read at the first watch, after a gap, and every `sync_interval`.
//!
//! # Failure modes
//! While Redis is unreachable, watchers see what each full sync reads. While SQL is unreachable, they see the last known version.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use live::{Live, SubscriptionEvent};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Stock;
use super::metrics::StockMetrics;
use super::publish::LiveOptions;
use super::snapshot::{Snapshot, StockUpdate};
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
    watched: Mutex<HashMap<DropId, Arc<watch::Sender<FeedState>>>>,
}

/// The state of a watched stock.
#[derive(Clone, Debug)]
enum FeedState {
    /// The first read is in progress.
    Loading,
    Snapshot(Snapshot),
    /// The first read failed. The watch ends with this.
    Failed(Arc<Error>),
}

/// One watcher of a stock.
#[derive(Debug)]
pub struct StockWatch {
    state: watch::Receiver<FeedState>,
    seen: Snapshot,
}

impl StockFeed {
    /// Creates a feed. A process needs only one, since clones share their subscriptions.
    pub fn new(live: Live, stock: Stock, options: LiveOptions, metrics: StockMetrics) -> Self {
        Self(Arc::new(Inner { live, stock, options, metrics, watched: Mutex::default() }))
    }

    /// Watches the stock of a drop. The first watcher of a drop waits for the subscription and a read of SQL; the others share both.
    ///
    /// Fails with [`Error::NoSuchDrop`], or if SQL cannot be read.
    pub async fn watch(&self, drop: DropId) -> Result<StockWatch, Error> {
        let mut state = self.open(drop);
        let started = state.wait_for(|state| !matches!(state, FeedState::Loading)).await;
        let first = started.map_err(|_| Error::NoBatchResult)?.clone();
        match first {
            FeedState::Snapshot(seen) => Ok(StockWatch { state, seen }),
            FeedState::Failed(error) => match *error {
                Error::NoSuchDrop(drop) => Err(Error::NoSuchDrop(drop)),
                _ => Err(Error::Batch(error)),
            },
            FeedState::Loading => Err(Error::NoBatchResult),
        }
    }

    /// Subscribes to a drop's channel. Starts the drop's task if there is none.
    fn open(&self, drop: DropId) -> watch::Receiver<FeedState> {
        match self.watched().entry(drop) {
            Entry::Occupied(watched) => watched.get().subscribe(),
            Entry::Vacant(vacant) => {
                let (sender, receiver) = watch::channel(FeedState::Loading);
                let sender = vacant.insert(Arc::new(sender)).clone();
                tokio::spawn(self.clone().follow(drop, sender));
                receiver
            }
        }
    }

    /// Follows the stock of a drop until it has no watchers.
    async fn follow(self, drop: DropId, sender: Arc<watch::Sender<FeedState>>) {
        let Inner { live, options, metrics, .. } = &*self.0;
        let mut subscription = live.subscribe::<StockUpdate>(drop).await;
        // Read after subscribing: earlier changes are in SQL, later ones are received.
        let mut newest = match self.read(drop).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.watched().remove(&drop);
                sender.send_replace(FeedState::Failed(Arc::new(error)));
                return;
            }
        };
        sender.send_replace(FeedState::Snapshot(newest));
        let (mut shown, mut shown_at, mut read_at) = (newest.version, Instant::now(), Instant::now());
        let mut sync_at = read_at + options.sync_interval;
        loop {
            tokio::select! {
                received = subscription.next() => match received {
                    SubscriptionEvent::Message(StockUpdate(snapshot)) => {
                        metrics.received();
                        newest = newest.or_newer(snapshot);
                    }
                    SubscriptionEvent::Gap => sync_at = sync_at.min(read_at + options.min_interval),
                },
                () = sleep_until(shown_at + options.min_interval), if newest.version > shown => {
                    (shown, shown_at) = (newest.version, Instant::now());
                    sender.send_replace(FeedState::Snapshot(newest));
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
                            "cannot read a watched stock; its watchers see the last known version"
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

    /// Ends the task of a drop without watchers. Returns whether it ended. A later watcher starts a new one.
    fn close_unless_watched(&self, drop: DropId, sender: &watch::Sender<FeedState>) -> bool {
        let mut watched = self.watched();
        let is_unwatched = sender.receiver_count() == 0;
        if is_unwatched {
            watched.remove(&drop);
        }
        is_unwatched
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<DropId, Arc<watch::Sender<FeedState>>>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StockWatch {
    /// Returns the newest known snapshot without waiting.
    pub fn current(&mut self) -> Snapshot {
        let state = self.state.borrow_and_update().clone();
        self.see(&state);
        self.seen
    }

    /// Waits for a newer snapshot than the last one that this watcher returned. Returns none when the process stops. Cancel safe.
    pub async fn changed(&mut self) -> Option<Snapshot> {
        self.newer_than(self.seen.version).await
    }

    /// Waits for a snapshot newer than `version`. Returns immediately if there is one. Returns none when the process stops. Cancel safe.
    pub async fn newer_than(&mut self, version: i64) -> Option<Snapshot> {
        let is_newer =
            |state: &FeedState| matches!(state, FeedState::Snapshot(snapshot) if snapshot.version > version);
        let state = self.state.wait_for(is_newer).await.ok()?.clone();
        self.see(&state);
        Some(self.seen)
    }

    fn see(&mut self, state: &FeedState) {
        if let FeedState::Snapshot(snapshot) = state {
            self.seen = *snapshot;
        }
    }
}

impl fmt::Debug for StockFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StockFeed").field("options", &self.0.options).finish_non_exhaustive()
    }
}

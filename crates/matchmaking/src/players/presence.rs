//! Tracks which players have a stream open here, and cancels the tickets of absent players.
//!
//! The store keeps, by its own clock, when each ticket becomes overdue. Every process regularly reports its players
//! with an open stream, which postpones that moment. Any process cancels overdue tickets. An opened or closed stream is
//! reported at once, so a ticket is cancelled exactly `cancel_when_gone` after its player's last stream closed. If a
//! process dies instead, the ticket is cancelled up to a third of that time earlier.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::id::Uuid;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::Queue;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::store::{AbsenceTimeouts, Store};

/// How often overdue tickets are cancelled, at least.
const MAX_SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Presence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    /// The timeouts of the queues that cancel tickets of absent players.
    absence_timeouts: watch::Sender<AbsenceTimeouts>,
    metrics: Metrics,
    streams: Mutex<Streams>,
    /// Notified when a player's first stream opens or the last one closes.
    changes: Notify,
}

#[derive(Debug, Default)]
struct Streams {
    /// The number of streams of each player.
    open: HashMap<Uuid, usize>,
    /// Players whose first stream opened or whose last one closed, and that are not reported to the store yet.
    changes: HashSet<Uuid>,
}

/// Marks a player as present until it is dropped.
#[derive(Debug)]
#[must_use = "the player is present until this is dropped"]
pub struct PresenceGuard {
    presence: Presence,
    user: Uuid,
}

impl Presence {
    pub(super) fn new(store: Store, queues: &BTreeMap<String, Queue>, metrics: Metrics) -> Self {
        let absence_timeouts = watch::Sender::new(absence_timeouts(queues));
        let (streams, changes) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { store, absence_timeouts, metrics, streams, changes }))
    }

    /// Follows changed queues. Players with an open stream are reported at once, so that no new timeout cancels their tickets.
    pub(super) fn set_queues(&self, queues: &BTreeMap<String, Queue>) {
        let new = absence_timeouts(queues);
        self.0.absence_timeouts.send_if_modified(|timeouts| {
            let is_changed = *timeouts != new;
            *timeouts = new;
            is_changed
        });
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, user: Uuid) -> PresenceGuard {
        let mut streams = self.streams();
        let open = streams.open.entry(user).or_default();
        *open += 1;
        if *open == 1 {
            self.0.metrics.present.inc();
            self.note_change(&mut streams, user);
        }
        PresenceGuard { presence: self.clone(), user }
    }

    fn leave(&self, user: Uuid) {
        let mut streams = self.streams();
        let Some(open) = streams.open.get_mut(&user) else { return };
        *open -= 1;
        if *open == 0 {
            streams.open.remove(&user);
            self.0.metrics.present.dec();
            self.note_change(&mut streams, user);
        }
    }

    /// Has a change reported, if any queue cancels tickets of absent players.
    fn note_change(&self, streams: &mut Streams, user: Uuid) {
        if !self.0.absence_timeouts.borrow().is_empty() {
            streams.changes.insert(user);
            self.0.changes.notify_one();
        }
    }

    pub(super) async fn tick(&self) -> Result<usize, Error> {
        // In this order: report present players before cancelling, however long reports failed.
        self.report_all().await?;
        self.cancel_overdue().await
    }

    /// Reports all present players to the store, and those who just left.
    async fn report_all(&self) -> Result<(), Error> {
        let changes = std::mem::take(&mut self.streams().changes);
        let users: Vec<Uuid> = self.streams().open.keys().chain(&changes).copied().collect();
        self.report(&users, changes).await
    }

    /// Reports the players who came or left.
    async fn report_changes(&self) -> Result<(), Error> {
        let changes = std::mem::take(&mut self.streams().changes);
        self.report(&Vec::from_iter(changes.iter().copied()), changes).await
    }

    async fn report(&self, users: &[Uuid], changes: HashSet<Uuid>) -> Result<(), Error> {
        let timeouts = self.0.absence_timeouts.borrow().clone();
        if users.is_empty() || timeouts.is_empty() {
            return Ok(());
        }
        let reported = self.0.store.mark_present(users, &timeouts).await;
        if reported.is_err() {
            self.streams().changes.extend(changes);
        }
        reported
    }

    async fn cancel_overdue(&self) -> Result<usize, Error> {
        let cancelled = self.0.store.cancel_overdue().await?;
        self.0.metrics.abandoned.inc_by(cancelled as u64);
        Ok(cancelled)
    }

    pub(super) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let mut timeouts = self.0.absence_timeouts.subscribe();
        loop {
            let shortest = timeouts.borrow_and_update().values().min().copied();
            let following = async {
                match shortest {
                    Some(shortest) => self.follow(shortest / 3).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Never finishes without an error.
                failed = following => return failed,
                // The sender is ours, so the channel is not closed.
                _ = timeouts.changed() => {}
                // Their streams end with this process.
                () = drain.requested() => return Ok(self.report_all().await?),
            }
        }
    }

    /// Reports the players who are present, and cancels overdue tickets, until that fails.
    async fn follow(&self, report_interval: Duration) -> Result<(), LoopError> {
        let mut interval = tokio::time::interval(report_interval.min(MAX_SWEEP_INTERVAL));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_report = Instant::now();
        loop {
            tokio::select! {
                _ = interval.tick() => {
                    if Instant::now() >= next_report {
                        next_report = Instant::now() + report_interval;
                        self.report_all().await?;
                    }
                    self.cancel_overdue().await?;
                }
                () = self.0.changes.notified() => self.report_changes().await?,
            }
        }
    }
}

fn absence_timeouts(queues: &BTreeMap<String, Queue>) -> AbsenceTimeouts {
    queues.iter().filter_map(|(name, queue)| Some((name.clone(), queue.cancel_when_gone?))).collect()
}

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        self.presence.leave(self.user);
    }
}

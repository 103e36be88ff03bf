//! Which players have a stream open here, and the end of tickets whose players are gone.
//!
//! The store holds when each ticket is overdue, by its own clock. Every process says again and again which players have a
//! stream open there, which moves that on, and any process cancels what is overdue. A stream that opens or closes is told at
//! once, so a ticket ends exactly so long after its player's last stream; where a process dies instead, up to a third of that
//! time earlier.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::id::Uuid;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use super::Queue;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::store::{GoneAfter, Store};

/// How often overdue tickets are looked for, at least.
const SWEEP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Presence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    gone_after: GoneAfter,
    metrics: Metrics,
    streams: Mutex<Streams>,
    /// Somebody came or went.
    news: Notify,
}

#[derive(Debug, Default)]
struct Streams {
    /// How many each player has.
    open: HashMap<Uuid, usize>,
    /// Players whose first stream opened or whose last one closed, and of whom the store has not been told.
    news: HashSet<Uuid>,
}

/// A stream of a player is open, until this is dropped.
#[derive(Debug)]
#[must_use = "the player is present until this is dropped"]
pub struct Present {
    /// Nothing where no queue wants to know.
    of: Option<(Presence, Uuid)>,
}

impl Presence {
    pub(super) fn new(store: Store, queues: &BTreeMap<String, Queue>, metrics: Metrics) -> Self {
        let gone_after =
            queues.iter().filter_map(|(name, queue)| Some((name.clone(), queue.cancel_when_gone?)));
        let gone_after = gone_after.collect();
        let (streams, news) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { store, gone_after, metrics, streams, news }))
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, user: Uuid) -> Present {
        if self.0.gone_after.is_empty() {
            return Present { of: None };
        }
        let mut streams = self.streams();
        let open = streams.open.entry(user).or_default();
        *open += 1;
        if *open == 1 {
            streams.news.insert(user);
            self.0.metrics.present.inc();
            self.0.news.notify_one();
        }
        Present { of: Some((self.clone(), user)) }
    }

    fn leave(&self, user: Uuid) {
        let mut streams = self.streams();
        let Some(open) = streams.open.get_mut(&user) else { return };
        *open -= 1;
        if *open == 0 {
            streams.open.remove(&user);
            streams.news.insert(user);
            self.0.metrics.present.dec();
            self.0.news.notify_one();
        }
    }

    pub(super) async fn tick(&self) -> Result<usize, Error> {
        // In this order: who is here is not gone, however long nobody could say so.
        self.tell_all().await?;
        self.sweep().await
    }

    /// Tells the store of everybody who is here, or was until now.
    async fn tell_all(&self) -> Result<(), Error> {
        let news = std::mem::take(&mut self.streams().news);
        let users: Vec<Uuid> = self.streams().open.keys().chain(&news).copied().collect();
        self.tell(&users, news).await
    }

    /// Tells the store of those who came and went.
    async fn tell_news(&self) -> Result<(), Error> {
        let news = std::mem::take(&mut self.streams().news);
        self.tell(&Vec::from_iter(news.iter().copied()), news).await
    }

    async fn tell(&self, users: &[Uuid], news: HashSet<Uuid>) -> Result<(), Error> {
        if users.is_empty() {
            return Ok(());
        }
        let told = self.0.store.present(users, &self.0.gone_after).await;
        if told.is_err() {
            self.streams().news.extend(news);
        }
        told
    }

    async fn sweep(&self) -> Result<usize, Error> {
        let cancelled = self.0.store.sweep().await?;
        self.0.metrics.abandoned.inc_by(cancelled as u64);
        Ok(cancelled)
    }

    pub(super) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let Some(shortest) = self.0.gone_after.values().min() else {
            drain.requested().await;
            return Ok(());
        };
        let beat = *shortest / 3;
        let mut round = tokio::time::interval(beat.min(SWEEP));
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_beat = Instant::now();
        loop {
            tokio::select! {
                _ = round.tick() => {
                    if Instant::now() >= next_beat {
                        next_beat = Instant::now() + beat;
                        self.tell_all().await?;
                    }
                    self.sweep().await?;
                }
                () = self.0.news.notified() => self.tell_news().await?,
                // Their streams end with us.
                () = drain.requested() => return Ok(self.tell_all().await?),
            }
        }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if let Some((presence, user)) = self.of.take() {
            presence.leave(user);
        }
    }
}

//! The sessions of this process: a few that rest, the others at work, never more than there are places.
//!
//! Not the driver's pool, which asks the server a question whenever a connection comes back: that would be a round trip more
//! than locking and releasing take together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::Connection;
use sqlx::mysql::MySqlConnectOptions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::session::{Session, Setup};
use super::{BRIEF, Inner};
use crate::error::bounded;
use crate::{Error, Options, Space};

/// A session that nobody needed for this long is closed.
const REST: Duration = Duration::from_secs(60);

/// The right to have a session at work.
pub(super) type Place = OwnedSemaphorePermit;

#[derive(Debug)]
pub(super) struct Sessions {
    database: MySqlConnectOptions,
    setup: Setup,
    pub(super) space: Space,
    pub(super) heartbeat: Duration,
    places: Arc<Semaphore>,
    max: u32,
    /// The one that rested the least is on top, so that the others may grow old.
    resting: Mutex<Vec<Arc<Session>>>,
    all: Mutex<Vec<Weak<Session>>>,
}

impl Sessions {
    pub(super) fn new(database: MySqlConnectOptions, options: &Options) -> Self {
        let Options { wait_timeout, buckets, max_connections, heartbeat } = *options;
        Self {
            database,
            setup: Setup { wait_timeout, heartbeat },
            space: Space::new(buckets),
            heartbeat,
            places: Arc::new(Semaphore::new(max_connections as usize)),
            max: max_connections,
            resting: Mutex::default(),
            all: Mutex::default(),
        }
    }

    pub(super) const fn places(&self) -> u32 {
        self.max
    }

    pub(super) fn is_idle(&self) -> bool {
        self.places.available_permits() == self.max as usize
    }

    pub(super) async fn place(&self) -> Result<Place, Error> {
        let place = self.places.clone().acquire_owned().await;
        place.map_err(|_| Error::Unreachable(sqlx::Error::PoolClosed))
    }

    /// A session, and whether it was used before. The caller has a place.
    pub(super) async fn take(&self) -> Result<(Arc<Session>, bool), Error> {
        while let Some(session) = self.pop() {
            if session.is_valid() {
                return Ok((session, true));
            }
        }
        Ok((self.connect().await?, false))
    }

    pub(super) async fn connect(&self) -> Result<Arc<Session>, Error> {
        let session = bounded(BRIEF, Session::connect(&self.database, &self.setup, &self.space)).await?;
        let session = Arc::new(session);
        let mut all = lock(&self.all);
        all.retain(|session| session.strong_count() > 0);
        all.push(Arc::downgrade(&session));
        Ok(session)
    }

    /// Makes sure that one of our sessions is there, for those who lock without one. While it is, nobody adds buckets, so they
    /// are as many as it has seen.
    pub(super) async fn be_there(&self) -> Result<(), Error> {
        let is_there = lock(&self.all).iter().filter_map(Weak::upgrade).any(|session| session.is_valid());
        if !is_there {
            let place = self.place().await?;
            let (session, _) = self.take().await?;
            self.give_back(session, Some(place));
        }
        Ok(())
    }

    /// Puts away a session without locks. Its place is free after that and not before, so that there are never more
    /// sessions than places.
    pub(super) fn give_back(&self, session: Arc<Session>, place: Option<Place>) {
        session.put_away();
        // Whoever closes does so before looking at those that rest.
        let mut resting = lock(&self.resting);
        if !self.places.is_closed() {
            resting.push(session);
        }
        drop(resting);
        drop(place);
    }

    pub(super) async fn close(&self) {
        self.places.close();
        let resting = std::mem::take(&mut *lock(&self.resting));
        for session in resting {
            close(session).await;
        }
    }

    fn pop(&self) -> Option<Arc<Session>> {
        lock(&self.resting).pop()
    }

    /// Takes out those that have rested for long, and those that are no longer there.
    fn remove_old(&self) -> Vec<Arc<Session>> {
        let mut resting = lock(&self.resting);
        let (keep, old) = resting.drain(..).partition(|session| session.is_valid() && session.rest() < REST);
        *resting = keep;
        old
    }
}

/// Keeps the sessions alive: the server ends those that say nothing. Ends with them.
pub(super) async fn keep(inner: Weak<Inner>, heartbeat: Duration) {
    let mut beat = tokio::time::interval(heartbeat / 2);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        // At once, for one that does not answer must not hold up the others.
        let mut tasks = JoinSet::new();
        for session in inner.sessions.remove_old() {
            tasks.spawn(close(session));
        }
        let silent: Vec<_> = lock(&inner.sessions.all)
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|session| !session.is_lost() && session.silence() >= heartbeat / 2)
            .collect();
        drop(inner);
        for session in silent {
            tasks.spawn(async move {
                if session.ping_unless_busy().await.is_err() {
                    tracing::warn!(
                        outage = "locks",
                        session = session.id,
                        "a session for locks was lost, with any locks it held"
                    );
                }
            });
        }
        tasks.join_all().await;
    }
}

/// Says goodbye, if nobody else has the session. One that is gone already needs none.
async fn close(session: Arc<Session>) {
    if let Some(session) = Arc::into_inner(session) {
        let _ = tokio::time::timeout(Duration::from_secs(1), session.connection.into_inner().close()).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks panics half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

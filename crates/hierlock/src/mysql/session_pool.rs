//! The pool of sessions of this process: some idle, some in use, never more than `max_connections`.
//!
//! Not the driver's pool, which pings the server whenever a connection is returned. That would be a third round trip, where locking and
//! releasing take two.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::Connection;
use sqlx::mysql::MySqlConnectOptions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::session::{Session, SessionSettings};
use super::{Inner, SHORT_TIMEOUT};
use crate::error::bounded;
use crate::{BucketSpace, Error, Options};

/// A session that was idle for this long is closed.
const MAX_IDLE: Duration = Duration::from_secs(60);

/// The permission to use a session.
pub(super) type SessionPermit = OwnedSemaphorePermit;

#[derive(Debug)]
pub(super) struct SessionPool {
    database: MySqlConnectOptions,
    settings: SessionSettings,
    pub(super) space: BucketSpace,
    pub(super) heartbeat: Duration,
    permits: Arc<Semaphore>,
    max_connections: u32,
    /// A stack: the most recently used session is on top, so that the others can reach [`MAX_IDLE`].
    idle: Mutex<Vec<Arc<Session>>>,
    all: Mutex<Vec<Weak<Session>>>,
}

impl SessionPool {
    pub(super) fn new(database: MySqlConnectOptions, options: &Options) -> Self {
        let Options { wait_timeout, buckets, max_connections, heartbeat } = *options;
        Self {
            database,
            settings: SessionSettings { wait_timeout, heartbeat },
            space: BucketSpace::new(buckets),
            heartbeat,
            permits: Arc::new(Semaphore::new(max_connections as usize)),
            max_connections,
            idle: Mutex::default(),
            all: Mutex::default(),
        }
    }

    pub(super) const fn max_connections(&self) -> u32 {
        self.max_connections
    }

    pub(super) fn is_idle(&self) -> bool {
        self.permits.available_permits() == self.max_connections as usize
    }

    pub(super) async fn permit(&self) -> Result<SessionPermit, Error> {
        let permit = self.permits.clone().acquire_owned().await;
        permit.map_err(|_| Error::Unreachable(sqlx::Error::PoolClosed))
    }

    /// Returns a session, and whether it was used before. The caller must hold a permit.
    pub(super) async fn take(&self) -> Result<(Arc<Session>, bool), Error> {
        while let Some(session) = self.pop() {
            if session.is_valid() {
                return Ok((session, true));
            }
        }
        Ok((self.connect().await?, false))
    }

    pub(super) async fn connect(&self) -> Result<Arc<Session>, Error> {
        let session =
            bounded(SHORT_TIMEOUT, Session::connect(&self.database, &self.settings, &self.space)).await?;
        let session = Arc::new(session);
        let mut all = lock(&self.all);
        all.retain(|session| session.strong_count() > 0);
        all.push(Arc::downgrade(&session));
        Ok(session)
    }

    /// Ensures that this process has a session, for callers that lock in their own transaction. While it has one, no buckets can be
    /// added, so their number is still the one that the session has checked.
    pub(super) async fn ensure_connected(&self) -> Result<(), Error> {
        let is_connected = lock(&self.all).iter().filter_map(Weak::upgrade).any(|session| session.is_valid());
        if !is_connected {
            let permit = self.permit().await?;
            let (session, _) = self.take().await?;
            self.give_back(session, Some(permit));
        }
        Ok(())
    }

    /// Returns a session without locks to the pool. Its permit is released last, so that there are never more sessions than permits.
    pub(super) fn give_back(&self, session: Arc<Session>, permit: Option<SessionPermit>) {
        session.mark_idle();
        // `close` closes the semaphore before it empties the stack, so no session is left behind.
        let mut idle = lock(&self.idle);
        if !self.permits.is_closed() {
            idle.push(session);
        }
        drop(idle);
        drop(permit);
    }

    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *lock(&self.idle));
        for session in idle {
            close(session).await;
        }
    }

    fn pop(&self) -> Option<Arc<Session>> {
        lock(&self.idle).pop()
    }

    /// Removes the sessions that were idle for too long and those that are lost.
    fn remove_old(&self) -> Vec<Arc<Session>> {
        let mut idle = lock(&self.idle);
        let (keep, old) =
            idle.drain(..).partition(|session| session.is_valid() && session.idle_time() < MAX_IDLE);
        *idle = keep;
        old
    }
}

/// Pings sessions that the server would end as idle, and closes old ones. Ends with the pool.
pub(super) async fn keep_alive(inner: Weak<Inner>, heartbeat: Duration) {
    let mut interval = tokio::time::interval(heartbeat / 2);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        // Concurrently, so that a session that does not answer cannot delay the others.
        let mut tasks = JoinSet::new();
        for session in inner.sessions.remove_old() {
            tasks.spawn(close(session));
        }
        let due: Vec<_> = lock(&inner.sessions.all)
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|session| !session.is_lost() && session.time_since_contact() >= heartbeat / 2)
            .collect();
        drop(inner);
        for session in due {
            tasks.spawn(async move {
                if session.ping_unless_busy().await.is_err() {
                    tracing::warn!(
                        outage = "locks",
                        session = session.id,
                        "lost a lock session and any locks it held"
                    );
                }
            });
        }
        tasks.join_all().await;
    }
}

/// Closes the session if this is the last reference to it. Best effort: a lost session need not be closed.
async fn close(session: Arc<Session>) {
    if let Some(session) = Arc::into_inner(session) {
        let _ = tokio::time::timeout(Duration::from_secs(1), session.connection.into_inner().close()).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

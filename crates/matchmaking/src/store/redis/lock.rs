//! The documented lock, for deployments where a program that takes it still runs.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::ConnectionManager;
use base::Backoff;
use base::id::Uuid;
use redis_store::{Call, Key};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::foreign::ForeignEngine;
use super::keys::Keys;
use super::scripts;
use crate::error::Error;

/// How long the lock outlives a dead holder.
const LEASE: Duration = Duration::from_secs(5);
/// How often a holder extends its lock.
const EXTEND_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for the lock.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));

#[derive(Clone, Debug)]
pub(super) struct Lock {
    connection: ConnectionManager,
    keys: Arc<[Key; 4]>,
    /// Serialises waiters of this process, so that only one of them polls Redis.
    local_queue: Arc<Mutex<()>>,
    foreign: ForeignEngine,
}

impl Lock {
    pub(super) fn new(connection: ConnectionManager, keys: &Keys, foreign: ForeignEngine) -> Self {
        Self { connection, keys: Arc::new(keys.lock_with_library()), local_queue: Arc::default(), foreign }
    }

    /// Acquires the lock. Every script that runs under it must check that the token still holds it.
    pub(super) async fn acquire(&self) -> Result<LockGuard, Error> {
        let local_turn = tokio::time::timeout(ACQUIRE_TIMEOUT, self.local_queue.clone().lock_owned())
            .await
            .map_err(|_| Error::Locked)?;
        // Created before the lock is taken, so that dropping this future releases the lock.
        let guard = LockGuard {
            lock: self.clone(),
            token: Uuid::new_v4().simple().to_string(),
            is_released: false,
            _local_turn: local_turn,
        };
        let deadline = Instant::now() + ACQUIRE_TIMEOUT;
        for failures in 1.. {
            let mut lock = scripts::LOCK.call(&self.keys[..]);
            lock.arg(&guard.token).arg(LEASE.as_millis() as u64);
            match lock.run::<i8>(self.connection.clone()).await? {
                1 => break,
                0 => {}
                _ => self.foreign.seen(),
            }
            if Instant::now() > deadline {
                return Err(Error::Locked);
            }
            tokio::time::sleep(RETRY.after(failures)).await;
        }
        Ok(guard)
    }
}

/// Holds the lock. Without a release the lock expires.
#[derive(Debug)]
pub(super) struct LockGuard {
    lock: Lock,
    token: String,
    is_released: bool,
    _local_turn: OwnedMutexGuard<()>,
}

impl LockGuard {
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Runs `step` and keeps extending the lock until it ends.
    pub(super) async fn run_extending<T>(&self, step: impl Future<Output = T>) -> T {
        tokio::pin!(step);
        loop {
            tokio::select! {
                done = step.as_mut() => return done,
                () = tokio::time::sleep(EXTEND_INTERVAL) => {
                    let mut extend = scripts::EXTEND.call(&self.lock.keys[..]);
                    self.run_or_warn(extend.arg(&self.token).arg(LEASE.as_millis() as u64), "extended").await;
                }
            }
        }
    }

    pub(super) async fn release(mut self) {
        self.run_or_warn(scripts::UNLOCK.call(&self.lock.keys[..]).arg(&self.token), "released").await;
        self.is_released = true;
    }

    async fn run_or_warn(&self, call: &Call, what: &str) {
        if let Err(error) = call.run::<()>(self.lock.connection.clone()).await {
            tracing::warn!(
                outage = what,
                cause = base::error::chain(&error),
                "The matchmaking lock could not be {what}"
            );
        }
    }
}

/// Releases the lock of a cancelled caller, so that others need not wait for it to expire.
impl Drop for LockGuard {
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.is_released, tokio::runtime::Handle::try_current()) {
            let (connection, keys, token) =
                (self.lock.connection.clone(), self.lock.keys.clone(), self.token.clone());
            runtime.spawn(async move {
                // If this fails, the lock expires.
                let _ = scripts::UNLOCK.call(&keys[..]).arg(&token).run::<()>(connection).await;
            });
        }
    }
}

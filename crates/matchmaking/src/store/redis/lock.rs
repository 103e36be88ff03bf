//! The documented lock, for systems where a program that locks still runs.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::ConnectionManager;
use base::Backoff;
use base::id::Uuid;
use redis_store::{Call, Key};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::keys::Keys;
use super::scripts;
use crate::error::Error;

/// How long the lock outlives a holder that died.
const LIFE: Duration = Duration::from_secs(5);
/// How often a holder says that it lives.
const EXTEND: Duration = Duration::from_secs(1);
/// How long to wait for the lock.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));

#[derive(Clone, Debug)]
pub(super) struct Lock {
    connection: ConnectionManager,
    keys: Arc<[Key; 4]>,
    /// Those who wait in this process wait here, not at Redis.
    turn: Arc<Mutex<()>>,
}

impl Lock {
    pub(super) fn new(connection: ConnectionManager, keys: &Keys) -> Self {
        Self { connection, keys: Arc::new(keys.lock_with_library()), turn: Arc::default() }
    }

    /// Takes the lock. Every step under it has to check, in its own script, that it is still the holder's.
    pub(super) async fn acquire(&self) -> Result<Held, Error> {
        let turn = tokio::time::timeout(PATIENCE, self.turn.clone().lock_owned())
            .await
            .map_err(|_| Error::Locked)?;
        // Before it is taken: if we are dropped in the middle, it is released.
        let held = Held {
            lock: self.clone(),
            token: Uuid::new_v4().simple().to_string(),
            released: false,
            _turn: turn,
        };
        let deadline = Instant::now() + PATIENCE;
        for failures in 1.. {
            let mut lock = scripts::LOCK.call(&self.keys[..]);
            if lock.arg(&held.token).arg(LIFE.as_millis() as u64).run(self.connection.clone()).await? {
                break;
            }
            if Instant::now() > deadline {
                return Err(Error::Locked);
            }
            tokio::time::sleep(AGAIN.after(failures)).await;
        }
        Ok(held)
    }
}

/// The lock, held. It ends by itself if it is not released.
#[derive(Debug)]
pub(super) struct Held {
    lock: Lock,
    token: String,
    released: bool,
    _turn: OwnedMutexGuard<()>,
}

impl Held {
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Does something while the lock is held, for as long as it takes.
    pub(super) async fn during<T>(&self, step: impl Future<Output = T>) -> T {
        tokio::pin!(step);
        loop {
            tokio::select! {
                done = step.as_mut() => return done,
                () = tokio::time::sleep(EXTEND) => {
                    let mut extend = scripts::EXTEND.call(&self.lock.keys[..]);
                    self.try_to(extend.arg(&self.token).arg(LIFE.as_millis() as u64), "extended").await;
                }
            }
        }
    }

    pub(super) async fn release(mut self) {
        self.try_to(scripts::UNLOCK.call(&self.lock.keys[..]).arg(&self.token), "released").await;
        self.released = true;
    }

    async fn try_to(&self, call: &Call, what: &str) {
        if let Err(error) = call.run::<()>(self.lock.connection.clone()).await {
            tracing::warn!(outage = what, cause = base::error::chain(&error), "the lock is not {what}");
        }
    }
}

/// A caller that went away in the middle must not keep everybody waiting.
impl Drop for Held {
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.released, tokio::runtime::Handle::try_current()) {
            let (connection, keys, token) =
                (self.lock.connection.clone(), self.lock.keys.clone(), self.token.clone());
            runtime.spawn(async move {
                // Where this fails the lock ends by itself.
                let _ = scripts::UNLOCK.call(&keys[..]).arg(&token).run::<()>(connection).await;
            });
        }
    }
}

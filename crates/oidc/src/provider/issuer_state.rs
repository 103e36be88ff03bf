//! The cached discovery document and keys of the issuer, and when they are fetched again.
//!
//! One task at a time fetches both; callers that need them meanwhile wait for that task. It runs detached, so a cancelled
//! request does not stop it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use base::error::chain;
use base::{Clock, Timestamp};
use tokio::sync::{Mutex, OwnedMutexGuard};
use url::Url;

use crate::config::Config;
use crate::error::Error;
use crate::http::Http;
use crate::keys::Keys;
use crate::metadata::Metadata;
use crate::token_cache::TokenCache;

/// The pause after a failure while nothing is cached. It is short because no token can be verified until a fetch succeeds.
const FIRST_COOLDOWN: Duration = Duration::from_millis(250);

/// The last successful fetch.
#[derive(Debug)]
pub(super) struct IssuerState {
    /// Counts the successful fetches.
    pub(super) generation: u64,
    pub(super) metadata: Metadata,
    pub(super) keys: Keys,
    fetched_at: Timestamp,
}

/// Fetches and caches the state of the issuer.
pub(super) struct IssuerCache {
    issuer: Url,
    discovery_url: Url,
    pub(super) http: Http,
    clock: Clock,
    cooldown: Duration,
    max_age: Duration,
    state: RwLock<Option<Arc<IssuerState>>>,
    tokens: Arc<TokenCache>,
    /// Locked by the task that fetches.
    fetching: Arc<Mutex<Option<Attempt>>>,
}

/// The result of the last fetch.
struct Attempt {
    ended_at: Timestamp,
    error: Option<Error>,
    /// Whether it returned a key that was not cached before.
    has_new_keys: bool,
}

impl IssuerCache {
    pub(super) fn new(
        config: &Config,
        issuer: Url,
        http: Http,
        clock: Clock,
        tokens: Arc<TokenCache>,
    ) -> Result<Self, Error> {
        Ok(Self {
            discovery_url: Metadata::discovery_url(&issuer)?,
            issuer,
            http,
            clock,
            cooldown: config.keys_cooldown,
            max_age: config.keys_max_age,
            state: RwLock::default(),
            tokens,
            fetching: Arc::default(),
        })
    }

    pub(super) const fn url(&self) -> &Url {
        &self.issuer
    }

    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.http.get("discovery", &self.discovery_url).await.map(drop)
    }

    /// Returns the cached state. Waits only for the first fetch; state older than `keys_max_age` is refreshed in the background.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Arc<IssuerState>, Error> {
        let Some(state) = self.last() else {
            return self.fetch_first().await;
        };
        if state.fetched_at.distance(self.clock.now()) >= self.max_age
            && let Ok(attempt) = self.fetching.clone().try_lock_owned()
            && !is_cooling(attempt.as_ref(), self.clock.now(), self.cooldown)
        {
            self.spawn_fetch(attempt);
        }
        Ok(state)
    }

    /// Returns a state newer than `seen`. Waits for the running fetch or starts one. Returns none at once during the cooldown.
    pub(super) async fn newer_than(self: &Arc<Self>, seen: &IssuerState) -> Option<Arc<IssuerState>> {
        let is_newer = |state: &Arc<IssuerState>| state.generation > seen.generation;
        let attempt = self.fetching.clone().lock_owned().await;
        // Another caller may have fetched while we waited for the lock.
        let last = self.last().filter(is_newer);
        // Only fetches without a new key start the cooldown, so an issuer may rotate its keys twice in a row.
        let fruitless = attempt.as_ref().filter(|attempt| !attempt.has_new_keys);
        if last.is_some() || is_cooling(fruitless, self.clock.now(), self.cooldown) {
            return last;
        }
        let _ = self.spawn_fetch(attempt).await;
        self.last().filter(is_newer)
    }

    async fn fetch_first(self: &Arc<Self>) -> Result<Arc<IssuerState>, Error> {
        let attempt = self.fetching.clone().lock_owned().await;
        if let Some(state) = self.last() {
            return Ok(state);
        }
        let cooldown = self.cooldown.min(FIRST_COOLDOWN);
        if let Some(error) = attempt.as_ref().and_then(|attempt| attempt.error.clone())
            && is_cooling(attempt.as_ref(), self.clock.now(), cooldown)
        {
            return Err(error);
        }
        match self.spawn_fetch(attempt).await {
            Ok(fetched) => fetched,
            // The runtime is shutting down.
            Err(_) => Err(Error::Failing { what: "discovery", status: 0 }),
        }
    }

    fn last(&self) -> Option<Arc<IssuerState>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn spawn_fetch(
        self: &Arc<Self>,
        mut attempt: OwnedMutexGuard<Option<Attempt>>,
    ) -> tokio::task::JoinHandle<Result<Arc<IssuerState>, Error>> {
        let this = self.clone();
        tokio::spawn(async move {
            let before = this.last();
            let fetched = this.fetch().await;
            if let Err(error) = &fetched {
                tracing::warn!(outage = "issuer", issuer = %this.issuer, error = chain(error), "Cannot fetch the keys of the issuer.");
            }
            let is_new = |state: &Arc<IssuerState>| {
                before.is_none_or(|before| state.keys.has_key_missing_from(&before.keys))
            };
            *attempt = Some(Attempt {
                ended_at: this.clock.now(),
                error: fetched.as_ref().err().cloned(),
                has_new_keys: fetched.as_ref().is_ok_and(is_new),
            });
            fetched
        })
    }

    async fn fetch(&self) -> Result<Arc<IssuerState>, Error> {
        let document = self.http.get("discovery", &self.discovery_url).await?;
        let metadata = Metadata::parse(&document, &self.issuer)?;
        let keys = Keys::parse(&self.http.get("keys", &metadata.jwks_uri).await?)?;
        let generation = self.last().map_or(0, |last| last.generation) + 1;
        let state = Arc::new(IssuerState { generation, metadata, keys, fetched_at: self.clock.now() });
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Some(state.clone());
        self.tokens.retain(generation, &state.keys);
        Ok(state)
    }
}

/// Returns whether the last fetch ended less than `cooldown` ago. A clock that was set back does not prolong it.
fn is_cooling(attempt: Option<&Attempt>, now: Timestamp, cooldown: Duration) -> bool {
    attempt.is_some_and(|attempt| attempt.ended_at.distance(now) < cooldown)
}

//! What we know of the issuer, and when we ask again.
//!
//! The discovery document and the keys are fetched together, by one task at a time; whoever needs them meanwhile waits for that
//! one. The task is nobody's in particular: a caller who leaves does not stop it.

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
use crate::remembered::Remembered;

/// How long to wait after a failure while nothing is known: then nobody can get in, so we are less patient.
const FIRST_COOLDOWN: Duration = Duration::from_millis(250);

/// What the issuer said last.
#[derive(Debug)]
pub(super) struct Known {
    /// Counts the answers.
    pub(super) generation: u64,
    pub(super) metadata: Metadata,
    pub(super) keys: Keys,
    fetched_at: Timestamp,
}

/// Where it comes from.
pub(super) struct Source {
    issuer: Url,
    place: Url,
    pub(super) http: Http,
    clock: Clock,
    cooldown: Duration,
    max_age: Duration,
    known: RwLock<Option<Arc<Known>>>,
    remembered: Arc<Remembered>,
    /// Held by the task that fetches.
    fetching: Arc<Mutex<Option<Attempt>>>,
}

/// The last time that we asked.
struct Attempt {
    ended_at: Timestamp,
    error: Option<Error>,
    /// Whether it brought a key that was not known before.
    brought_keys: bool,
}

impl Source {
    pub(super) fn new(
        config: &Config,
        issuer: Url,
        http: Http,
        clock: Clock,
        remembered: Arc<Remembered>,
    ) -> Result<Self, Error> {
        Ok(Self {
            place: Metadata::place(&issuer)?,
            issuer,
            http,
            clock,
            cooldown: config.keys_cooldown,
            max_age: config.keys_max_age,
            known: RwLock::default(),
            remembered,
            fetching: Arc::default(),
        })
    }

    pub(super) const fn issuer(&self) -> &Url {
        &self.issuer
    }

    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.http.get("discovery", &self.place).await.map(drop)
    }

    /// What is known. Waits only if nothing is; what is old is asked for anew behind the caller's back.
    pub(super) async fn known(self: &Arc<Self>) -> Result<Arc<Known>, Error> {
        let Some(known) = self.last() else {
            return self.first().await;
        };
        if known.fetched_at.distance(self.clock.now()) >= self.max_age
            && let Ok(turn) = self.fetching.clone().try_lock_owned()
            && !is_cooling(turn.as_ref(), self.clock.now(), self.cooldown)
        {
            self.spawn_fetch(turn);
        }
        Ok(known)
    }

    /// What is known after `seen`, if anything. Waits for the one who asks, or asks, or says at once that it is too soon.
    pub(super) async fn newer(self: &Arc<Self>, seen: &Known) -> Option<Arc<Known>> {
        let is_newer = |known: &Arc<Known>| known.generation > seen.generation;
        let turn = self.fetching.clone().lock_owned().await;
        // Somebody else may have asked while we waited for our turn.
        let last = self.last().filter(is_newer);
        // An issuer that changes its keys twice in a row is believed: only questions that led to nothing are held back.
        let in_vain = turn.as_ref().filter(|attempt| !attempt.brought_keys);
        if last.is_some() || is_cooling(in_vain, self.clock.now(), self.cooldown) {
            return last;
        }
        let _ = self.spawn_fetch(turn).await;
        self.last().filter(is_newer)
    }

    async fn first(self: &Arc<Self>) -> Result<Arc<Known>, Error> {
        let turn = self.fetching.clone().lock_owned().await;
        if let Some(known) = self.last() {
            return Ok(known);
        }
        let cooldown = self.cooldown.min(FIRST_COOLDOWN);
        if let Some(error) = turn.as_ref().and_then(|attempt| attempt.error.clone())
            && is_cooling(turn.as_ref(), self.clock.now(), cooldown)
        {
            return Err(error);
        }
        match self.spawn_fetch(turn).await {
            Ok(fetched) => fetched,
            // The runtime is about to end.
            Err(_) => Err(Error::Failing { what: "discovery", status: 0 }),
        }
    }

    fn last(&self) -> Option<Arc<Known>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn spawn_fetch(
        self: &Arc<Self>,
        mut turn: OwnedMutexGuard<Option<Attempt>>,
    ) -> tokio::task::JoinHandle<Result<Arc<Known>, Error>> {
        let this = self.clone();
        tokio::spawn(async move {
            let before = this.last();
            let fetched = this.fetch().await;
            if let Err(error) = &fetched {
                tracing::warn!(outage = "issuer", issuer = %this.issuer, error = chain(error), "no keys from the issuer");
            }
            let is_news =
                |known: &Arc<Known>| before.is_none_or(|before| known.keys.has_more_than(&before.keys));
            *turn = Some(Attempt {
                ended_at: this.clock.now(),
                error: fetched.as_ref().err().cloned(),
                brought_keys: fetched.as_ref().is_ok_and(is_news),
            });
            fetched
        })
    }

    async fn fetch(&self) -> Result<Arc<Known>, Error> {
        let document = self.http.get("discovery", &self.place).await?;
        let metadata = Metadata::parse(&document, &self.issuer)?;
        let keys = Keys::parse(&self.http.get("keys", &metadata.jwks_uri).await?)?;
        let generation = self.last().map_or(0, |last| last.generation) + 1;
        let known = Arc::new(Known { generation, metadata, keys, fetched_at: self.clock.now() });
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(known.clone());
        self.remembered.retain(generation, &known.keys);
        Ok(known)
    }
}

/// Whether we asked a moment ago. A clock that was set back does not make it longer.
fn is_cooling(attempt: Option<&Attempt>, now: Timestamp, cooldown: Duration) -> bool {
    attempt.is_some_and(|attempt| attempt.ended_at.distance(now) < cooldown)
}

//! The store of sessions, in Redis or in process.
//!
//! The browser has 256 random bits in a cookie. The store has only their SHA-256, so a leaked store does not let an attacker use a
//! session. The issuer's tokens in it are sealed.
//!
//! Invariants, each with a test over both adapters:
//! - A session ends everywhere at once: every request reads the store.
//! - One process at a time holds the lease to refresh a session. A refreshed session is written under that lease or not at all.
//! - A session expires from the store when it is idle for too long, and at its end in any case.

pub(crate) mod history;
mod memory;
mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use account::Role;
use base::id::Uuid;
use base::{Clock, Timestamp};
use futures::stream::BoxStream;
use redis_store::RedisStore;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::redis::TRIALS;
use redis_store::Error;

/// How many milliseconds before its expiry an access token is refreshed, so that a request can still use it.
const REFRESH_AHEAD: i64 = 5_000;

/// The value of the session cookie, which proves a sign-in.
#[derive(Clone)]
pub struct SessionSecret(String);

impl SessionSecret {
    pub fn generate() -> Self {
        Self(oidc::random_token())
    }

    /// Wraps the value that a browser sent.
    pub fn from_cookie(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn id(&self) -> SessionId {
        SessionId(hex(&[&self.0]).into())
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The id of a session. Not a secret: it is the SHA-256 of one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The player signed out, or an operator or the issuer ended it.
    Ended,
    /// The same browser signed in again.
    Replaced,
}

/// The live message that a session has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedEnd {
    pub id: SessionId,
    pub cause: EndCause,
}

impl SessionId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to trace it through a log.
        write!(f, "{}", self.0.get(..12).unwrap_or_default())
    }
}

/// A session. Its times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The user, for the audit log.
    pub user_id: Uuid,
    pub issuer: String,
    pub subject: String,
    /// The issuer's own id of the session.
    pub sid: Option<String>,
    pub name: Option<String>,
    pub roles: Vec<Role>,
    /// The issuer's tokens, sealed.
    pub tokens: String,
    /// When to refresh it; none if the issuer returned no refresh token.
    pub refresh_after: Option<i64>,
    /// Until when it is accepted without a refresh.
    pub valid_until: i64,
    /// When it ends at the latest.
    pub ends_at: i64,
    /// When the sign-in was completed, by SQL's clock: earlier logouts do not end it. 0 if an older version wrote it.
    #[serde(default)]
    pub began_at: i64,
    /// How often its refresh token was replaced.
    #[serde(default)]
    pub generation: i64,
}

impl Session {
    /// Returns when it ends at the latest.
    pub fn ends_at(&self) -> Timestamp {
        Timestamp::from_millis(self.ends_at)
    }

    /// Sets when to refresh it and how long it is valid without a refresh, for an access token that expires at `expires_at`.
    pub(crate) fn set_expiry(
        &mut self,
        now: Timestamp,
        expires_at: Timestamp,
        is_refreshable: bool,
        grace: Duration,
    ) {
        let (now, expiry) = (now.as_millis(), expires_at.as_millis());
        // A very short-lived token is refreshed at half its life.
        let due = (expiry - REFRESH_AHEAD).max(now + (expiry - now) / 2);
        self.refresh_after = is_refreshable.then_some(due);
        self.valid_until = expires_at.after(grace).as_millis();
        if !is_refreshable {
            // The issuer has no later chance to end it.
            self.ends_at = self.ends_at.min(self.valid_until);
        }
    }

    /// Returns its groups: the session at the issuer, and the identity.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let of_sid = match &self.sid {
            Some(sid) => Group::of_sid(&self.issuer, sid),
            None => Group::without_sid(&self.issuer, &self.subject),
        };
        vec![of_sid, Group::of_subject(&self.issuer, &self.subject)]
    }
}

/// A group of sessions that end together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group(String);

impl Group {
    pub fn of_sid(issuer: &str, sid: &str) -> Self {
        Self(format!("sid:{}", hex(&[issuer, sid])))
    }

    /// The sessions of an identity that have no `sid`.
    pub fn without_sid(issuer: &str, subject: &str) -> Self {
        Self(format!("nameless:{}", hex(&[issuer, subject])))
    }

    pub fn of_subject(issuer: &str, subject: &str) -> Self {
        Self(format!("subject:{}", hex(&[issuer, subject])))
    }
}

/// A session and its version, which counts its replacements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSession {
    pub session: Session,
    pub version: u64,
}

/// The result of claiming the refresh of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefreshClaim {
    /// The caller must refresh it. No other process does while the lease lasts.
    Granted(Lease),
    /// Another process refreshes it.
    Busy,
    /// It was replaced since it was read: read it again.
    Replaced,
    Gone,
}

/// The lease to replace one session, with its fencing token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    id: SessionId,
    fence: String,
}

/// The store of sessions. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct SessionStore {
    adapter: Adapter,
    idle: Duration,
    clock: Clock,
}

#[derive(Clone, Debug)]
enum Adapter {
    Memory(Arc<memory::Memory>),
    Redis(Arc<redis::Redis>),
}

/// Calls the same method of the active adapter.
macro_rules! each {
    ($store:expr, $adapter:ident => $call:expr) => {
        match &$store.adapter {
            Adapter::Memory($adapter) => $call,
            Adapter::Redis($adapter) => $call,
        }
    };
}

impl SessionStore {
    /// Opens the store. It drops a session that was not read for `idle`.
    pub fn new(redis_store: &RedisStore, prefix: &str, idle: Duration, clock: Clock) -> Self {
        let adapter = match redis_store {
            RedisStore::Memory => Adapter::Memory(Arc::new(memory::Memory::new(clock.clone()))),
            RedisStore::Redis(redis) => Adapter::Redis(Arc::new(redis::Redis::new(redis.clone(), prefix))),
        };
        Self { adapter, idle, clock }
    }

    pub async fn insert(&self, id: &SessionId, session: &Session) -> Result<(), Error> {
        let life = self.life(session);
        let longest = self.until(session.ends_at);
        each!(self, store => store.insert(id, session, life, longest).await)
    }

    /// Reads a session, which counts as using it.
    pub async fn read(&self, id: &SessionId) -> Result<Option<StoredSession>, Error> {
        let found = each!(self, store => store.read(id, self.idle).await)?;
        Ok(found.filter(|found| found.session.ends_at > self.now().as_millis()))
    }

    /// Claims the refresh of a session that was read at this version, for the duration `lease`.
    pub async fn claim(&self, id: &SessionId, version: u64, lease: Duration) -> Result<RefreshClaim, Error> {
        let fence = oidc::random_token();
        each!(self, store => store.claim(id, version, fence, lease).await)
    }

    /// Renews a lease. Returns false if it was lost.
    pub async fn renew(&self, lease: &Lease, length: Duration) -> Result<bool, Error> {
        each!(self, store => store.renew(lease, length).await)
    }

    /// Writes a refreshed session and releases the lease. Returns false, and writes nothing, if the lease was lost.
    pub async fn replace(&self, lease: &Lease, session: &Session) -> Result<bool, Error> {
        let life = self.life(session);
        each!(self, store => store.replace(lease, session, life).await)
    }

    /// Removes a session from Redis only, which may lose the removal. Callers record the end in SQL first.
    pub async fn remove(&self, id: &SessionId, session: &Session) -> Result<(), Error> {
        self.remove_for(EndCause::Ended, id, session).await
    }

    /// Does the same as [`remove`](Self::remove), and publishes why.
    pub async fn remove_for(&self, cause: EndCause, id: &SessionId, session: &Session) -> Result<(), Error> {
        let end = PublishedEnd { id: id.clone(), cause };
        each!(self, store => store.remove(end, &session.groups()).await)
    }

    /// Removes all sessions of a group. Returns how many there were.
    pub async fn remove_group(&self, group: &Group) -> Result<usize, Error> {
        each!(self, store => store.remove_group(group).await)
    }

    /// Subscribes to the ends of sessions. The subscription ends when Redis is lost.
    pub async fn ends(&self) -> Result<BoxStream<'static, PublishedEnd>, Error> {
        each!(self, store => store.ends().await)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns how long the store keeps a session that is not read.
    fn life(&self, session: &Session) -> Duration {
        self.idle.min(self.until(session.ends_at))
    }

    fn until(&self, millis: i64) -> Duration {
        Duration::from_millis(millis.saturating_sub(self.now().as_millis()).try_into().unwrap_or(1).max(1))
    }
}

/// Returns the SHA-256 of texts in hexadecimal digits. Each text is preceded by its length, so different lists never collide.
fn hex(texts: &[&str]) -> String {
    let hash = texts.iter().fold(Sha256::new(), |hash, text| {
        hash.chain_update((text.len() as u64).to_be_bytes()).chain_update(text)
    });
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_without_refresh_token_ends_after_the_grace_period() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        let session = |is_refreshable: bool, expires_at: i64| {
            let mut session = Session {
                user_id: Uuid::nil(),
                issuer: String::new(),
                subject: String::new(),
                sid: None,
                name: None,
                roles: Vec::new(),
                tokens: String::new(),
                refresh_after: None,
                valid_until: 0,
                ends_at: 10_000_000,
                began_at: 0,
                generation: 0,
            };
            session.set_expiry(at(1_000), at(expires_at), is_refreshable, Duration::from_secs(600));
            (session.refresh_after, session.valid_until, session.ends_at)
        };
        assert_eq!(session(true, 1_300), (Some(1_295_000), 1_900_000, 10_000_000));
        assert_eq!(
            session(true, 1_004),
            (Some(1_002_000), 1_604_000, 10_000_000),
            "a short-lived token, at half its life"
        );
        assert_eq!(session(false, 1_300), (None, 1_900_000, 1_900_000), "without a refresh token");
    }
}

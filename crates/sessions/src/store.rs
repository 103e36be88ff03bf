//! The store of sessions, in Redis or in process.
//!
//! The browser has 256 random bits in a cookie. The store has their SHA-256 only, so reading the store does not help to sign in as
//! somebody else. The issuer's tokens in it are sealed.
//!
//! Invariants, each with a test over both adapters:
//! - a session ends everywhere at once: every request reads the store
//! - one process at a time holds the lease to refresh a session; a refreshed session is written under that lease or not at all
//! - a session expires from the store: when it is idle for too long, and at its end in any case

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

/// How long before its expiry an access token is refreshed, in milliseconds, so that a request can still use it.
const EARLY: i64 = 5_000;

/// The value of the session cookie, which proves a sign-in.
#[derive(Clone)]
pub struct SessionSecret(String);

impl SessionSecret {
    pub fn generate() -> Self {
        Self(oidc::random_token())
    }

    /// The value that a browser sent.
    pub fn of_cookie(text: &str) -> Self {
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

/// The name of a session. Not a secret: it is the SHA-256 of one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

impl SessionId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough to follow it through a log.
        write!(f, "{}", self.0.get(..12).unwrap_or_default())
    }
}

/// A session as it is stored.
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
    /// When to refresh it; none if the issuer gave no refresh token. In milliseconds, as all times here.
    pub refresh_after: Option<i64>,
    /// Until when it is accepted although it could not be refreshed.
    pub valid_until: i64,
    /// When it ends, used or not.
    pub ends_at: i64,
    /// When its sign-in reached us, by the clock of SQL: what has ended before does not end it. 0 if it was written by an older program.
    #[serde(default)]
    pub began_at: i64,
    /// How often its refresh token was replaced.
    #[serde(default)]
    pub generation: i64,
}

impl Session {
    /// When it ends, used or not.
    pub fn ends_at(&self) -> Timestamp {
        Timestamp::from_millis(self.ends_at)
    }

    /// Sets when it is refreshed and how long it lasts without, for an access token that expires at `expires_at`.
    pub(crate) fn run_until(
        &mut self,
        now: Timestamp,
        expires_at: Timestamp,
        refreshable: bool,
        grace: Duration,
    ) {
        let (now, expiry) = (now.as_millis(), expires_at.as_millis());
        // A very short one is refreshed at half its life.
        let due = (expiry - EARLY).max(now + (expiry - now) / 2);
        self.refresh_after = refreshable.then_some(due);
        self.valid_until = expires_at.after(grace).as_millis();
        if !refreshable {
            // The issuer is never asked about it again.
            self.ends_at = self.ends_at.min(self.valid_until);
        }
    }

    /// The groups that it is a member of: the issuer's session, and the person.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let of_sid = match &self.sid {
            Some(sid) => Group::of_sid(&self.issuer, sid),
            None => Group::without_sid(&self.issuer, &self.subject),
        };
        vec![of_sid, Group::of_subject(&self.issuer, &self.subject)]
    }
}

/// Sessions that end together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group(String);

impl Group {
    pub fn of_sid(issuer: &str, sid: &str) -> Self {
        Self(format!("sid:{}", hex(&[issuer, sid])))
    }

    /// The sessions of a person that have no `sid`.
    pub fn without_sid(issuer: &str, subject: &str) -> Self {
        Self(format!("nameless:{}", hex(&[issuer, subject])))
    }

    pub fn of_subject(issuer: &str, subject: &str) -> Self {
        Self(format!("subject:{}", hex(&[issuer, subject])))
    }
}

/// A session, and how often it was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub session: Session,
    pub version: u64,
}

/// The result of claiming the refresh of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller refreshes it; no other process does while the lease lasts.
    Yours(Lease),
    /// Another process refreshes it.
    Busy,
    /// It was replaced after it was read.
    Moved,
    Gone,
}

/// The right to replace one session, with its fence.
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

/// Calls the same method of either adapter.
macro_rules! each {
    ($store:expr, $adapter:ident => $call:expr) => {
        match &$store.adapter {
            Adapter::Memory($adapter) => $call,
            Adapter::Redis($adapter) => $call,
        }
    };
}

impl SessionStore {
    /// Opens the store. It drops a session that is not read for `idle`.
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
    pub async fn read(&self, id: &SessionId) -> Result<Option<Found>, Error> {
        let found = each!(self, store => store.read(id, self.idle).await)?;
        Ok(found.filter(|found| found.session.ends_at > self.now().as_millis()))
    }

    /// Claims the refresh of a session that was read with this version, for the duration `lease`.
    pub async fn claim(&self, id: &SessionId, version: u64, lease: Duration) -> Result<Claim, Error> {
        let fence = oidc::random_token();
        each!(self, store => store.claim(id, version, fence, lease).await)
    }

    /// Renews a lease. Returns false if it was lost.
    pub async fn keep(&self, lease: &Lease, length: Duration) -> Result<bool, Error> {
        each!(self, store => store.keep(lease, length).await)
    }

    /// Writes a refreshed session and releases the lease. Returns false, and writes nothing, if the lease was lost.
    pub async fn replace(&self, lease: &Lease, session: &Session) -> Result<bool, Error> {
        let life = self.life(session);
        each!(self, store => store.replace(lease, session, life).await)
    }

    /// Removes a session. Redis may bring it back: [`Sessions::end`](crate::Sessions::end) records that it has ended.
    pub async fn remove(&self, id: &SessionId, session: &Session) -> Result<(), Error> {
        each!(self, store => store.remove(id, &session.groups()).await)
    }

    /// Removes all sessions of a group. Returns how many there were.
    pub async fn remove_group(&self, group: &Group) -> Result<usize, Error> {
        each!(self, store => store.remove_group(group).await)
    }

    /// Subscribes to the ends of sessions, for those who hold a stream open for one. The stream ends when the store is lost.
    pub async fn ends(&self) -> Result<BoxStream<'static, SessionId>, Error> {
        each!(self, store => store.ends().await)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// How long the store keeps a session that is not read.
    fn life(&self, session: &Session) -> Duration {
        self.idle.min(self.until(session.ends_at))
    }

    fn until(&self, millis: i64) -> Duration {
        Duration::from_millis(millis.saturating_sub(self.now().as_millis()).try_into().unwrap_or(1).max(1))
    }
}

/// The SHA-256 of texts in hexadecimal digits. Each text follows its length, so texts cannot be shifted into one another.
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
    fn a_session_lasts_as_long_as_the_issuer_can_be_asked_about_it() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        let session = |refreshable: bool, expires_at: i64| {
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
            session.run_until(at(1_000), at(expires_at), refreshable, Duration::from_secs(600));
            (session.refresh_after, session.valid_until, session.ends_at)
        };
        assert_eq!(session(true, 1_300), (Some(1_295_000), 1_900_000, 10_000_000));
        assert_eq!(
            session(true, 1_004),
            (Some(1_002_000), 1_604_000, 10_000_000),
            "a short one, at half its life"
        );
        assert_eq!(session(false, 1_300), (None, 1_900_000, 1_900_000), "without a refresh token");
    }
}

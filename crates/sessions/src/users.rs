//! Looks up users in `account` by issuer and subject, and caches them.
//!
//! While the database is unreachable, a result of the last minute is reused, and requests do not wait long for a newer one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use account::{Account, Accounts, Error, Role, SignIn, UserId, UserState, UserView};
use base::cache::make_room;
use base::error::Coded;
use oidc::AccessToken;
use tokio::time::{Instant, timeout};

use crate::keyed_mutex::KeyedMutex;
use crate::store::Session;

/// The number of shards, so that requests do not contend for one lock.
const SHARDS: usize = 16;
/// How long after its expiry a cached user is reused while the database is unreachable.
const STALE: Duration = Duration::from_secs(60);
/// How long a request waits for a newer result if it has an older one.
const REFRESH_WAIT: Duration = Duration::from_millis(500);
/// The most users in a shard. A full shard drops the expired ones, or an eighth if none have expired.
const SHARD_SIZE: usize = 4096;

/// A person or service as the issuer describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub issuer: String,
    pub subject: String,
    pub name: Option<String>,
    pub roles: Vec<Role>,
}

impl Identity {
    /// Returns the identity of a session.
    pub(crate) fn from_session(session: &Session) -> Self {
        Self {
            issuer: session.issuer.clone(),
            subject: session.subject.clone(),
            name: session.name.clone(),
            roles: session.roles.clone(),
        }
    }
}

/// A user and their accounts, at most as old as the cache allows.
#[derive(Clone, Debug)]
pub struct KnownUser {
    pub user: UserView,
    pub accounts: Vec<Account>,
}

/// How to handle an identity without a user.
#[derive(Clone, Copy, Debug)]
enum UnknownIdentity {
    Register,
    Refuse,
}

/// Looks up users in `account` through a cache. Cheap to clone; clones share state.
#[derive(Clone)]
pub(crate) struct Users(Arc<Inner>);

struct Inner {
    accounts: Accounts,
    ttl: Duration,
    cache: UserCache,
    /// One query at a time per user.
    looking_up: KeyedMutex<String>,
}

#[derive(Clone)]
struct CachedUser {
    fresh_until: Instant,
    /// Until when it is reused while the database is unreachable.
    stale_until: Instant,
    known: Arc<KnownUser>,
}

/// Users by [`key`].
#[derive(Default)]
struct UserCache([Mutex<HashMap<String, CachedUser>>; SHARDS]);

impl UserCache {
    fn get(&self, key: &str) -> Option<CachedUser> {
        self.shard(key).get(key).cloned()
    }

    fn insert(&self, key: String, cached: CachedUser) {
        let mut shard = self.shard(&key);
        if shard.len() >= SHARD_SIZE {
            let now = Instant::now();
            make_room(&mut shard, SHARD_SIZE, |cached| cached.stale_until > now);
        }
        shard.insert(key, cached);
    }

    /// Treats a stale user as fresh until `until`, unless it was replaced, so that the next requests do not wait.
    fn prolong(&self, key: &str, before: &CachedUser, until: Instant) {
        let is_same = |cached: &&mut CachedUser| cached.stale_until == before.stale_until;
        if let Some(cached) = self.shard(key).get_mut(key).filter(is_same) {
            cached.fresh_until = until;
        }
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, HashMap<String, CachedUser>> {
        // Hashes the end of the key, because that is where subjects differ.
        let at = key
            .bytes()
            .rev()
            .take(8)
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.0[at % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Users {
    pub(crate) fn new(accounts: Accounts, ttl: Duration) -> Self {
        Self(Arc::new(Inner {
            accounts,
            ttl,
            cache: UserCache::default(),
            looking_up: KeyedMutex::default(),
        }))
    }

    /// Finds the user of an identity, and creates one on first use. Fails if the user is banned.
    pub(crate) async fn resolve(&self, identity: &Identity) -> Result<Arc<KnownUser>, Error> {
        self.resolve_or(identity, UnknownIdentity::Register).await
    }

    /// Finds the user of a session's identity. Fails if the user is banned or erased, and never creates one.
    pub(crate) async fn resolve_session(&self, identity: &Identity) -> Result<Arc<KnownUser>, Error> {
        self.resolve_or(identity, UnknownIdentity::Refuse).await
    }

    async fn resolve_or(
        &self,
        identity: &Identity,
        unknown: UnknownIdentity,
    ) -> Result<Arc<KnownUser>, Error> {
        let key = key(identity);
        let now = Instant::now();
        let before = match self.0.cache.get(&key).filter(|before| before.stale_until > now) {
            // Boxed, as it is rare and large: the future of the fast path stays small.
            None => return Box::pin(self.look_up_once(identity, key, now, unknown)).await,
            Some(before) if before.fresh_until > now => return Ok(before.known),
            Some(before) => before,
        };
        // A task of its own: a late result still updates the cache.
        let (users, identity, name) = (self.clone(), identity.clone(), key.clone());
        let look_up = tokio::spawn(async move { users.look_up_once(&identity, name, now, unknown).await });
        match timeout(REFRESH_WAIT, look_up).await {
            Ok(Ok(result)) if !is_transient(&result) => result,
            // A stale user is better than none: routes that need no database still work.
            _ => {
                self.0.cache.prolong(&key, &before, now + self.0.ttl);
                Ok(before.known)
            }
        }
    }

    /// Finds the user of an identity, without the cache. Returns none if the identity has never signed in.
    pub(crate) async fn find(&self, issuer: &str, subject: &str) -> Result<Option<UserId>, Error> {
        match self.0.accounts.find(issuer, subject).await {
            Ok(user) => Ok(Some(user.id)),
            Err(Error::UnknownIdentity | Error::Invalid { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fails if the user is banned.
    pub(crate) async fn check_ban(&self, user: UserId) -> Result<(), Error> {
        let found = self.0.accounts.user(user).await?;
        match found.state {
            UserState::Banned => Err(Error::Banned { user, reason: found.ban_reason.unwrap_or_default() }),
            UserState::Active | UserState::Erased => Ok(()),
        }
    }

    /// Looks up the user, or waits for a lookup in flight: a client that starts sends several requests at once.
    async fn look_up_once(
        &self,
        identity: &Identity,
        key: String,
        now: Instant,
        unknown: UnknownIdentity,
    ) -> Result<Arc<KnownUser>, Error> {
        let mutex = self.0.looking_up.get(&key);
        let Ok(_guard) = mutex.try_lock() else {
            drop(mutex.lock().await);
            return match self.0.cache.get(&key).filter(|found| found.fresh_until > now) {
                Some(found) => Ok(found.known),
                // The other lookup failed.
                None => self.look_up(identity, key, now, unknown).await,
            };
        };
        self.look_up(identity, key, now, unknown).await
    }

    /// Looks up the user and caches the result.
    async fn look_up(
        &self,
        identity: &Identity,
        key: String,
        now: Instant,
        unknown: UnknownIdentity,
    ) -> Result<Arc<KnownUser>, Error> {
        match self.query(identity, unknown).await {
            Ok(known) => {
                let (known, fresh_until) = (Arc::new(known), now + self.0.ttl);
                let stale_until = fresh_until + STALE;
                self.0.cache.insert(key, CachedUser { fresh_until, stale_until, known: known.clone() });
                Ok(known)
            }
            Err(error) => {
                // A banned user must not be accepted from the cache.
                if !error.is_transient() {
                    self.0.cache.shard(&key).remove(&key);
                }
                Err(error)
            }
        }
    }

    async fn query(&self, identity: &Identity, unknown: UnknownIdentity) -> Result<KnownUser, Error> {
        let sign_in = SignIn {
            issuer: identity.issuer.clone(),
            subject: identity.subject.clone(),
            display_name: identity.name.clone().map(shortened),
            roles: identity.roles.clone(),
        };
        let (user, accounts) = match unknown {
            UnknownIdentity::Register => self.0.accounts.sign_in_with_accounts(&sign_in).await?,
            UnknownIdentity::Refuse => self.0.accounts.find_with_accounts(&sign_in).await?,
        };
        Ok(KnownUser { user, accounts })
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("ttl", &self.0.ttl).finish_non_exhaustive()
    }
}

fn is_transient(result: &Result<Arc<KnownUser>, Error>) -> bool {
    result.as_ref().is_err_and(Error::is_transient)
}

/// Maps the issuer's roles to ours. A service has no other role; all other callers are players, and may be operators too.
pub(crate) fn roles(access: &AccessToken) -> Vec<Role> {
    if access.is_service {
        return vec![Role::Service];
    }
    [Role::Player].into_iter().chain(access.is_operator.then_some(Role::Operator)).collect()
}

/// Returns the cache key: everything that a result depends on. The subject comes last, see [`UserCache::shard`].
fn key(Identity { issuer, subject, name, roles }: &Identity) -> String {
    let mut key = String::with_capacity(issuer.len() + subject.len() + 64);
    for text in [name.as_deref().unwrap_or("\u{1}"), issuer] {
        key.push_str(text);
        key.push('\u{0}');
    }
    roles.iter().for_each(|role| key.push_str(role.word()));
    key.push('\u{0}');
    key.push_str(subject);
    key
}

/// Shortens a display name to what `account` accepts.
fn shortened(name: String) -> String {
    const MAX_LENGTH: usize = 100;
    let name: String = name.chars().filter(|c| !c.is_control()).take(MAX_LENGTH).collect();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use base::Timestamp;

    use super::*;

    fn cached(stale_until: Instant) -> CachedUser {
        let user = UserView {
            id: UserId::generate(),
            state: UserState::Active,
            display_name: None,
            roles: Vec::new(),
            ban_reason: None,
            created_at: Timestamp::from_millis(0),
        };
        let known = Arc::new(KnownUser { user, accounts: Vec::new() });
        CachedUser { fresh_until: stale_until, stale_until, known }
    }

    /// Returns the key of a user in the first shard: the bytes that choose the shard are equal.
    fn key_in_one_shard(number: usize) -> String {
        format!("{number} of shard")
    }

    #[tokio::test(start_paused = true)]
    async fn full_shard_drops_expired_users_first_and_then_an_eighth() {
        let (cache, now) = (UserCache::default(), Instant::now());
        for number in 0..SHARD_SIZE {
            cache.insert(key_in_one_shard(number), cached(now + STALE));
        }
        let used = || cache.shard(&key_in_one_shard(0)).len();
        assert_eq!(used(), SHARD_SIZE, "the keys are in several shards");
        cache.insert(key_in_one_shard(SHARD_SIZE), cached(now + STALE));
        assert_eq!(used(), SHARD_SIZE * 7 / 8 + 1, "most users stay");
        for number in 0..SHARD_SIZE / 8 - 1 {
            cache.insert(key_in_one_shard(2 * SHARD_SIZE + number), cached(now));
        }
        assert_eq!(used(), SHARD_SIZE);
        cache.insert(key_in_one_shard(3 * SHARD_SIZE), cached(now + STALE));
        assert_eq!(used(), SHARD_SIZE * 7 / 8 + 1);
        let shard = cache.shard(&key_in_one_shard(0));
        assert!(shard.values().all(|cached| cached.stale_until > now), "expired users are dropped first");
    }
}

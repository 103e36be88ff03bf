//! Looks up users in `account` by issuer and subject, and caches them.
//!
//! While `account` is away, an answer of the last minute is reused, and requests do not wait long for a newer one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use account::{Account, Accounts, Error, Role, SignIn, UserId, UserState, UserView};
use base::error::Coded;
use oidc::Access;
use tokio::time::{Instant, timeout};

use crate::keyed_mutex::KeyedMutex;
use crate::store::Session;

/// Shards of the cache, so that requests do not queue for one lock.
const SHARDS: usize = 16;
/// How long after its expiry an answer is reused while `account` is away.
const STALE: Duration = Duration::from_secs(60);
/// How long a request waits for a new answer when it has an older one.
const REFRESH_WAIT: Duration = Duration::from_millis(500);
/// How many users a shard holds before it drops expired ones; if none are, it drops an eighth of them.
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
    /// The identity that a session belongs to.
    pub(crate) fn of(session: &Session) -> Self {
        Self {
            issuer: session.issuer.clone(),
            subject: session.subject.clone(),
            name: session.name.clone(),
            roles: session.roles.clone(),
        }
    }
}

/// A user and their accounts, as `account` answered within the time of the cache.
#[derive(Clone, Debug)]
pub struct KnownUser {
    pub user: UserView,
    pub accounts: Vec<Account>,
}

/// What becomes of an identity that has no user.
#[derive(Clone, Copy, Debug)]
enum Unknown {
    Register,
    Refuse,
}

/// Looks up users in `account` through a cache. Cheap to clone; clones share state.
#[derive(Clone)]
pub(crate) struct Users(Arc<Inner>);

struct Inner {
    accounts: Accounts,
    ttl: Duration,
    shards: [Mutex<HashMap<String, Cached>>; SHARDS],
    /// One query at a time per user.
    looking_up: KeyedMutex<String>,
}

#[derive(Clone)]
struct Cached {
    fresh_until: Instant,
    /// Until when it is reused while `account` is away.
    stale_until: Instant,
    known: Arc<KnownUser>,
}

impl Users {
    pub(crate) fn new(accounts: Accounts, ttl: Duration) -> Self {
        Self(Arc::new(Inner { accounts, ttl, shards: Default::default(), looking_up: KeyedMutex::default() }))
    }

    /// Finds the user of an identity, and creates them at the first time. Fails if they are banned.
    pub(crate) async fn resolve(&self, identity: &Identity) -> Result<Arc<KnownUser>, Error> {
        self.resolve_or(identity, Unknown::Register).await
    }

    /// Finds the user of the identity that a session has. Fails if they are banned or erased: a session of an erased user registers nobody.
    pub(crate) async fn of_session(&self, identity: &Identity) -> Result<Arc<KnownUser>, Error> {
        self.resolve_or(identity, Unknown::Refuse).await
    }

    async fn resolve_or(&self, identity: &Identity, unknown: Unknown) -> Result<Arc<KnownUser>, Error> {
        let key = key(identity);
        let now = Instant::now();
        let before = match self.cached(&key).filter(|before| before.stale_until > now) {
            // Boxed, as it is rare and large: the future of the hot path stays small.
            None => return Box::pin(self.look_up_once(identity, key, now, unknown)).await,
            Some(before) if before.fresh_until > now => return Ok(before.known),
            Some(before) => before,
        };
        // A task of its own: a late answer still goes into the cache.
        let (users, identity, name) = (self.clone(), identity.clone(), key.clone());
        let look_up = tokio::spawn(async move { users.look_up_once(&identity, name, now, unknown).await });
        match timeout(REFRESH_WAIT, look_up).await {
            Ok(Ok(answer)) if !is_away(&answer) => answer,
            // A stale answer beats none: parts that need no database still work.
            _ => {
                self.prolong(&key, &before, now + self.0.ttl);
                Ok(before.known)
            }
        }
    }

    /// Finds the user of an identity, without the cache. Returns none if nobody has signed in with it.
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

    /// Looks up the user, or waits for a look-up under way: a client that starts sends several requests at once.
    async fn look_up_once(
        &self,
        identity: &Identity,
        key: String,
        now: Instant,
        unknown: Unknown,
    ) -> Result<Arc<KnownUser>, Error> {
        let mutex = self.0.looking_up.of(&key);
        let Ok(_ours) = mutex.try_lock() else {
            drop(mutex.lock().await);
            return match self.cached(&key).filter(|found| found.fresh_until > now) {
                Some(found) => Ok(found.known),
                // The other look-up failed.
                None => self.look_up(identity, key, now, unknown).await,
            };
        };
        self.look_up(identity, key, now, unknown).await
    }

    /// Looks up the user and caches the answer.
    async fn look_up(
        &self,
        identity: &Identity,
        key: String,
        now: Instant,
        unknown: Unknown,
    ) -> Result<Arc<KnownUser>, Error> {
        match self.ask(identity, unknown).await {
            Ok(known) => {
                let (known, fresh_until) = (Arc::new(known), now + self.0.ttl);
                let stale_until = fresh_until + STALE;
                self.insert(key, Cached { fresh_until, stale_until, known: known.clone() });
                Ok(known)
            }
            Err(error) => {
                // A user who is refused now must not be admitted by an older answer.
                if !error.is_passing() {
                    self.shard(&key).remove(&key);
                }
                Err(error)
            }
        }
    }

    async fn ask(&self, identity: &Identity, unknown: Unknown) -> Result<KnownUser, Error> {
        let sign_in = SignIn {
            issuer: identity.issuer.clone(),
            subject: identity.subject.clone(),
            display_name: identity.name.clone().map(shortened),
            roles: identity.roles.clone(),
        };
        let (user, accounts) = match unknown {
            Unknown::Register => self.0.accounts.sign_in_with_accounts(&sign_in).await?,
            Unknown::Refuse => self.0.accounts.find_with_accounts(&sign_in).await?,
        };
        Ok(KnownUser { user, accounts })
    }

    fn cached(&self, key: &str) -> Option<Cached> {
        self.shard(key).get(key).cloned()
    }

    fn insert(&self, key: String, cached: Cached) {
        let mut shard = self.shard(&key);
        if shard.len() >= SHARD_SIZE {
            make_room(&mut shard, Instant::now());
        }
        shard.insert(key, cached);
    }

    /// Treats a stale answer as fresh until `until`, so that the next requests do not wait, unless it was replaced.
    fn prolong(&self, key: &str, before: &Cached, until: Instant) {
        let same = |there: &&mut Cached| there.stale_until == before.stale_until;
        if let Some(there) = self.shard(key).get_mut(key).filter(same) {
            there.fresh_until = until;
        }
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, HashMap<String, Cached>> {
        // The last characters of subjects differ, whatever the issuer makes them of.
        let at = key
            .bytes()
            .rev()
            .take(8)
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.0.shards[at % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops expired users, and if that is less than an eighth of the shard, the first others that are found: they cost one query each when
/// they come back. Dropping all would make every player at once cost one.
fn make_room(shard: &mut HashMap<String, Cached>, now: Instant) {
    shard.retain(|_, found| found.stale_until > now);
    let mut surplus = shard.len().saturating_sub(SHARD_SIZE * 7 / 8);
    shard.retain(|_, _| {
        let goes = surplus > 0;
        surplus -= usize::from(goes);
        !goes
    });
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("ttl", &self.0.ttl).finish_non_exhaustive()
    }
}

fn is_away(answer: &Result<Arc<KnownUser>, Error>) -> bool {
    answer.as_ref().is_err_and(Error::is_passing)
}

/// Maps the issuer's roles to ours. A service is nothing else; all others are players, and may be operators too.
pub(crate) fn roles(access: &Access) -> Vec<Role> {
    if access.is_service {
        return vec![Role::Service];
    }
    [Role::Player].into_iter().chain(access.is_operator.then_some(Role::Operator)).collect()
}

/// The key of the cache: everything that an answer depends on. The subject is at the end, see [`Users::shard`].
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

/// Shortens an issuer's name to what `account` accepts.
fn shortened(name: String) -> String {
    const MOST: usize = 100;
    let name: String = name.chars().filter(|c| !c.is_control()).take(MOST).collect();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use account::{UserId, UserState};
    use base::Timestamp;

    use super::*;

    fn cached(stale_until: Instant) -> Cached {
        let user = UserView {
            id: UserId::generate(),
            state: UserState::Active,
            display_name: None,
            roles: Vec::new(),
            ban_reason: None,
            created_at: Timestamp::from_millis(0),
        };
        let known = Arc::new(KnownUser { user, accounts: Vec::new() });
        Cached { fresh_until: stale_until, stale_until, known }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_shard_drops_expired_users_first_and_then_a_few() {
        let (now, later) = (Instant::now(), Instant::now() + STALE);
        let mut shard: HashMap<String, Cached> =
            (0..SHARD_SIZE).map(|number| (number.to_string(), cached(later))).collect();
        make_room(&mut shard, now);
        assert_eq!(shard.len(), SHARD_SIZE * 7 / 8, "most of them stay");
        shard.extend((0..SHARD_SIZE).map(|number| (format!("expired {number}"), cached(now))));
        make_room(&mut shard, now);
        assert_eq!(shard.len(), SHARD_SIZE * 7 / 8, "nobody goes who is not expired");
        assert!(shard.keys().all(|key| !key.starts_with("expired")));
    }
}

//! Who callers are to us: the user whom `account` knows by issuer and subject.
//!
//! While `account` is away, what it said in the last minute will do, and nobody waits for it long.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use account::{Account, Accounts, Error, Role, SignIn, UserView};
use base::error::Coded;
use oidc::Access;
use tokio::time::{Instant, timeout};

use crate::session::Session;
use crate::turns::Turns;

/// So many locks, so that requests do not queue for one.
const SHARDS: usize = 16;
/// How long an answer may be used that cannot be asked for anew because `account` is away.
const STALE: Duration = Duration::from_secs(60);
/// How long is waited for a new answer while an older one will do.
const IMPATIENCE: Duration = Duration::from_millis(500);
/// How many users one shard remembers before it looks for those whose time is over; if that does not help, it forgets all.
const SHARD_SIZE: usize = 4096;

/// Somebody as the issuer describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) issuer: String,
    pub(crate) subject: String,
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<Role>,
}

impl Identity {
    /// Whose session it is.
    pub(crate) fn of(session: &Session) -> Self {
        Self {
            issuer: session.issuer.clone(),
            subject: session.subject.clone(),
            name: session.name.clone(),
            roles: session.roles.clone(),
        }
    }
}

/// A user, as `account` said lately.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) user: UserView,
    pub(crate) accounts: Vec<Account>,
}

/// Asks `account` who somebody is, and remembers the answer for a moment. Clones are the same.
#[derive(Clone)]
pub(crate) struct Users(Arc<Inner>);

struct Inner {
    accounts: Accounts,
    remember: Duration,
    shards: [Mutex<HashMap<String, Remembered>>; SHARDS],
    /// Of those who are being asked about.
    turns: Turns<String>,
}

#[derive(Clone)]
struct Remembered {
    /// Until when it is taken to be true, and until when it will do if nothing better can be had.
    until: Instant,
    at_most: Instant,
    known: Arc<Known>,
}

impl Users {
    pub(crate) fn new(accounts: Accounts, remember: Duration) -> Self {
        Self(Arc::new(Inner { accounts, remember, shards: Default::default(), turns: Turns::default() }))
    }

    /// The user, who is made at the first time. Fails if they are banned.
    pub(crate) async fn know(&self, identity: &Identity) -> Result<Arc<Known>, Error> {
        let key = key(identity);
        let now = Instant::now();
        let before = match self.remembered(&key).filter(|before| before.at_most > now) {
            // Boxed, as it is rare and large: what is on the way of every request stays small.
            None => return Box::pin(self.learn_once(identity, key, now)).await,
            Some(before) if before.until > now => return Ok(before.known),
            Some(before) => before,
        };
        // A task of its own: an answer that comes late is still worth knowing.
        let (users, identity, name) = (self.clone(), identity.clone(), key.clone());
        let learning = tokio::spawn(async move { users.learn_once(&identity, name, now).await });
        match timeout(IMPATIENCE, learning).await {
            Ok(Ok(answer)) if !is_away(&answer) => answer,
            // Better an old answer than none: parts that need no database still work.
            _ => {
                self.prolong(&key, &before, now + self.0.remember);
                Ok(before.known)
            }
        }
    }

    /// Asks, unless somebody else is at it: a client that starts sends several requests at once.
    async fn learn_once(&self, identity: &Identity, key: String, now: Instant) -> Result<Arc<Known>, Error> {
        let turn = self.0.turns.of(&key);
        let Ok(_ours) = turn.try_lock() else {
            drop(turn.lock().await);
            return match self.remembered(&key).filter(|found| found.until > now) {
                Some(found) => Ok(found.known),
                // It did not work for them.
                None => self.learn(identity, key, now).await,
            };
        };
        self.learn(identity, key, now).await
    }

    /// Asks, and remembers the answer.
    async fn learn(&self, identity: &Identity, key: String, now: Instant) -> Result<Arc<Known>, Error> {
        match self.ask(identity).await {
            Ok(known) => {
                let (known, until) = (Arc::new(known), now + self.0.remember);
                self.remember(key, Remembered { until, at_most: until + STALE, known: known.clone() });
                Ok(known)
            }
            Err(error) => {
                // Whoever was turned away is not let in by what was true before.
                if !error.is_passing() {
                    self.shard(&key).remove(&key);
                }
                Err(error)
            }
        }
    }

    async fn ask(&self, identity: &Identity) -> Result<Known, Error> {
        let sign_in = SignIn {
            issuer: identity.issuer.clone(),
            subject: identity.subject.clone(),
            display_name: identity.name.clone().map(shortened),
            roles: identity.roles.clone(),
        };
        let (user, accounts) = self.0.accounts.sign_in_with_accounts(&sign_in).await?;
        Ok(Known { user, accounts })
    }

    fn remembered(&self, key: &str) -> Option<Remembered> {
        self.shard(key).get(key).cloned()
    }

    fn remember(&self, key: String, remembered: Remembered) {
        let mut shard = self.shard(&key);
        if shard.len() >= SHARD_SIZE {
            let now = Instant::now();
            shard.retain(|_, found| found.at_most > now);
        }
        if shard.len() >= SHARD_SIZE {
            shard.clear();
        }
        shard.insert(key, remembered);
    }

    /// Spares those who come next the wait, unless there is something newer by now.
    fn prolong(&self, key: &str, before: &Remembered, until: Instant) {
        if let Some(there) = self.shard(key).get_mut(key).filter(|there| there.at_most == before.at_most) {
            there.until = until;
        }
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, HashMap<String, Remembered>> {
        // Ends of subjects differ, whatever the issuer makes them of.
        let at = key
            .bytes()
            .rev()
            .take(8)
            .fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.0.shards[at % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("remember", &self.0.remember).finish_non_exhaustive()
    }
}

fn is_away(answer: &Result<Arc<Known>, Error>) -> bool {
    answer.as_ref().is_err_and(Error::is_passing)
}

/// What the roles of the issuer mean here. A service is a service and nothing else; everybody else is a player, and may be an
/// operator too.
pub(crate) fn roles(access: &Access) -> Vec<Role> {
    if access.is_service {
        return vec![Role::Service];
    }
    [Role::Player].into_iter().chain(access.is_operator.then_some(Role::Operator)).collect()
}

/// Everything that an answer depends on. The subject is at the end, see [`Users::shard`].
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

/// An issuer's idea of a name may be longer than ours.
fn shortened(name: String) -> String {
    const MOST: usize = 100;
    let name: String = name.chars().filter(|c| !c.is_control()).take(MOST).collect();
    name.trim().to_owned()
}

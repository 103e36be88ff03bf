//! Opens session stores for the tests.

use std::collections::BTreeMap;
use std::time::Duration;

use account::Role;
use base::Clock;
use base::Timestamp;
use redis_store::{HashTags, RedisStore};
use sessions::{Session, SessionId, SessionSecret, SessionStore};
use testkit::{DeclaredKeysProxy, Redis, RedisNamespace};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const ISSUER: &str = "https://issuer.test";

/// The pattern of session ids that a script reads from a group: SHA-256 in hex.
pub(crate) const LEARNED: &str = "????????????????????????????????????????????????????????????????";

/// A store backend and its clock.
#[derive(Debug)]
pub(crate) struct Setup {
    redis: Option<RedisNamespace>,
    /// Overrides the server's address.
    url: Option<String>,
    hash_tags: HashTags,
    clock: Clock,
}

impl Setup {
    pub(crate) fn memory() -> Self {
        let clock = Clock::manual(Timestamp::from_millis(1_700_000_000_000));
        Self { redis: None, url: None, hash_tags: HashTags::Off, clock }
    }

    /// Uses the system clock, because Redis's clock cannot be moved.
    pub(crate) fn redis(redis: &Redis) -> Self {
        Self { redis: Some(redis.namespace()), clock: Clock::system(), ..Self::memory() }
    }

    /// Uses keys with hash tags on a server in cluster mode. Scripts reach only the keys that they declare.
    pub(crate) fn declared(redis: &Redis, keys: &DeclaredKeysProxy) -> Self {
        Self { url: Some(keys.url()), hash_tags: HashTags::On, ..Self::redis(redis) }
    }

    /// Returns the stores of three processes. In memory all three are the same store.
    pub(crate) async fn stores(&self, idle: Duration) -> [SessionStore; 3] {
        let Some(keyspace) = &self.redis else {
            let one = SessionStore::new(&RedisStore::Memory, "", idle, self.clock.clone());
            return [one.clone(), one.clone(), one];
        };
        let open = async || {
            let url = self.url.as_deref().unwrap_or(keyspace.url());
            let redis = redis_store::Redis::open(url, PATIENCE).await.unwrap();
            let redis_store = RedisStore::Redis(redis.with_hash_tags(self.hash_tags));
            SessionStore::new(&redis_store, keyspace.prefix(), idle, self.clock.clone())
        };
        [open().await, open().await, open().await]
    }

    /// Advances the time.
    pub(crate) async fn pass(&self, time: Duration) {
        if self.redis.is_some() {
            tokio::time::sleep(time).await;
        }
        self.clock.advance(time);
    }

    pub(crate) fn session(&self, subject: &str, life: Duration) -> Session {
        let now = self.clock.now();
        Session {
            user_id: base::id::Uuid::nil(),
            issuer: ISSUER.to_owned(),
            subject: subject.to_owned(),
            sid: None,
            name: None,
            roles: vec![Role::Player],
            tokens: "sealed".to_owned(),
            refresh_after: Some(now.as_millis()),
            valid_until: now.after(life).as_millis(),
            ends_at: now.after(life).as_millis(),
            began_at: now.as_millis(),
            generation: 0,
        }
    }

    /// Returns the keys in Redis and their remaining milliseconds.
    pub(crate) async fn lives(&self) -> BTreeMap<String, i64> {
        let keyspace = self.redis.as_ref().expect("a Redis");
        let mut redis = keyspace.connect().await;
        let pattern = format!("{}*", keyspace.prefix());
        let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut redis).await.unwrap();
        let mut lives = BTreeMap::new();
        for key in keys {
            let life = redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
            lives.insert(key, life);
        }
        lives
    }

    /// Returns how many members the groups of this kind have in Redis.
    pub(crate) async fn members(&self, kind: &str) -> u64 {
        let mut redis = self.redis.as_ref().expect("a Redis").connect().await;
        let mut members = 0;
        for group in self.lives().await.into_keys().filter(|key| key.contains(kind)) {
            members += redis::cmd("ZCARD").arg(group).query_async::<u64>(&mut redis).await.unwrap();
        }
        members
    }
}

/// Returns the id of a new session.
pub(crate) fn id() -> SessionId {
    SessionSecret::generate().id()
}

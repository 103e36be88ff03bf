//! Limits to test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use limits::{Check, Limits, Metrics, Rate, Verdict};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use redis_store::{HashTags, RedisStore};
use testkit::{DeclaredKeys, Keyspace, Redis};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a healthy server ever takes, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Where limits are, for any number of processes.
#[derive(Debug)]
pub(crate) struct Setup {
    redis: Option<Keyspace>,
    /// Instead of the server's own address.
    url: Option<String>,
    hash_tags: HashTags,
}

impl Setup {
    pub(crate) fn memory() -> Self {
        Self { redis: None, url: None, hash_tags: HashTags::Off }
    }

    pub(crate) fn redis(redis: &Redis) -> Self {
        Self { redis: Some(redis.keyspace()), ..Self::memory() }
    }

    /// Keys with hash tags on a server in cluster mode, and scripts that reach only the keys that they declare.
    pub(crate) fn declared(redis: &Redis, keys: &DeclaredKeys) -> Self {
        Self { url: Some(keys.url()), hash_tags: HashTags::On, ..Self::redis(redis) }
    }

    pub(crate) async fn open(&self) -> World {
        let url = self.redis.as_ref().map(|redis| self.url.as_deref().unwrap_or(redis.url()).to_owned());
        self.open_at(url, TIMEOUT).await
    }

    /// Reaches the server in another way.
    pub(crate) async fn open_at(&self, url: Option<String>, timeout: Duration) -> World {
        let redis_store = match url {
            None => RedisStore::Memory,
            Some(url) => {
                let redis = redis_store::Redis::open(&url, TIMEOUT).await.unwrap();
                RedisStore::Redis(redis.with_hash_tags(self.hash_tags))
            }
        };
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let prefix = self.redis.as_ref().map_or("", |redis| redis.prefix());
        World { limits: Limits::new(&redis_store, prefix, timeout, metrics), registry: Arc::new(registry) }
    }

    pub(crate) fn keyspace(&self) -> &Keyspace {
        self.redis.as_ref().expect("a Redis")
    }
}

/// The limits of one process.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) limits: Limits,
    registry: Arc<Registry>,
}

impl World {
    pub(crate) async fn take(&self, key: &str, rate: &str) -> Verdict {
        self.limits.take(&[check("one", key, rate)]).await
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut encoded = String::new();
        text::encode(&mut encoded, &self.registry).unwrap();
        let line = encoded.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }
}

/// What came of a rush on one bucket.
#[derive(Debug)]
pub(crate) struct Rush {
    pub(crate) allowed: u64,
    /// More cannot be allowed in the time that it took.
    pub(crate) most: u64,
    /// Fewer cannot be, unless the bucket was full in between.
    pub(crate) least: u64,
}

/// Asks from several tasks in each process until the time is over, and then until one is refused.
///
/// With that, what was allowed is known for certain, however late the tasks run: the burst, and what was refilled between
/// the first and the last decision.
pub(crate) async fn rush(worlds: &[&World], key: &str, rate: &str, time: Duration) -> Rush {
    const TASKS: usize = 8;
    let rate: Rate = rate.parse().unwrap();
    let one = u64::try_from(rate.window().as_micros()).unwrap() / rate.quota();
    let refilled = |time: Duration| u64::try_from(time.as_micros()).unwrap() / one;
    let ask = async |limits: &Limits| {
        let verdict = limits.take(&[Check { policy: "one", key, rate }]).await;
        assert!(verdict.shared);
        verdict.allowed
    };
    let before = Instant::now();
    let mut allowed = u64::from(ask(&worlds[0].limits).await);
    let after = Instant::now();
    let asking =
        worlds.iter().flat_map(|world| std::iter::repeat_n(world.limits.clone(), TASKS)).map(|limits| {
            let key = key.to_owned();
            tokio::spawn(async move {
                let mut allowed = 0;
                while before.elapsed() < time {
                    let verdict = limits.take(&[Check { policy: "one", key: &key, rate }]).await;
                    allowed += u64::from(verdict.allowed && verdict.shared);
                    // In process, nothing else gives way.
                    tokio::task::yield_now().await;
                }
                allowed
            })
        });
    allowed += futures::future::try_join_all(asking).await.unwrap().iter().sum::<u64>();
    let mut last = after.elapsed();
    while ask(&worlds[0].limits).await {
        allowed += 1;
        last = after.elapsed();
    }
    Rush { allowed, most: rate.quota() + refilled(before.elapsed()), least: rate.quota() + refilled(last) }
}

pub(crate) fn check<'a>(policy: &'static str, key: &'a str, rate: &str) -> Check<'a> {
    Check { policy, key, rate: rate.parse::<Rate>().unwrap() }
}

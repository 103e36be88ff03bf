//! Setup of limits for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Clock;
use limits::{Check, KeyKind, LimitDecision, Limits, Metrics, Rate};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use redis_store::{HashTags, RedisStore};
use testkit::{DeclaredKeysProxy, Redis, RedisNamespace};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a healthy server takes, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// The store of limits, shared by any number of processes.
#[derive(Debug)]
pub(crate) struct Setup {
    redis: Option<RedisNamespace>,
    /// Replaces the address of the server.
    url: Option<String>,
    hash_tags: HashTags,
}

impl Setup {
    pub(crate) fn memory() -> Self {
        Self { redis: None, url: None, hash_tags: HashTags::Off }
    }

    pub(crate) fn redis(redis: &Redis) -> Self {
        Self { redis: Some(redis.namespace()), ..Self::memory() }
    }

    /// Uses keys with hash tags on a server in cluster mode, through a proxy that records undeclared keys.
    pub(crate) fn declared(redis: &Redis, keys: &DeclaredKeysProxy) -> Self {
        Self { url: Some(keys.url()), hash_tags: HashTags::On, ..Self::redis(redis) }
    }

    pub(crate) async fn open(&self) -> TestProcess {
        let url = self.redis.as_ref().map(|redis| self.url.as_deref().unwrap_or(redis.url()).to_owned());
        self.open_at(url, TIMEOUT).await
    }

    /// Opens limits with another URL and timeout.
    pub(crate) async fn open_at(&self, url: Option<String>, timeout: Duration) -> TestProcess {
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
        TestProcess {
            limits: Limits::new(&redis_store, prefix, timeout, metrics, Clock::system()),
            registry: Arc::new(registry),
        }
    }

    pub(crate) fn namespace(&self) -> &RedisNamespace {
        self.redis.as_ref().expect("a Redis")
    }
}

/// The limits of one process.
#[derive(Clone, Debug)]
pub(crate) struct TestProcess {
    pub(crate) limits: Limits,
    registry: Arc<Registry>,
}

impl TestProcess {
    pub(crate) async fn take(&self, key: &str, rate: &str) -> LimitDecision {
        self.limits.take(&[check("one", key, rate)]).await
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut encoded = String::new();
        text::encode(&mut encoded, &self.registry).unwrap();
        let line = encoded.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }
}

/// The result of load on one bucket.
#[derive(Debug)]
pub(crate) struct LoadResult {
    pub(crate) allowed: u64,
    /// The most that the rate allows in the elapsed time.
    pub(crate) max: u64,
    /// The least that the rate allows, unless the bucket was full in between.
    pub(crate) min: u64,
}

/// Sends requests from several tasks in each process until the time is over, and then until one is refused.
///
/// So the number of allowed requests is exact, however late the tasks run: the burst, plus the refill between the first and the last
/// decision. Only a full bucket loses tokens, so the least counts from the last decision that found it full.
pub(crate) async fn run_load(
    processes: &[&TestProcess],
    key: &str,
    rate: &str,
    time: Duration,
) -> LoadResult {
    const TASKS: usize = 8;
    let rate: Rate = rate.parse().unwrap();
    let one = u64::try_from(rate.window().as_micros()).unwrap() / rate.quota();
    let refilled = |time: Duration| u64::try_from(time.as_micros()).unwrap() / one;
    let (start, key) = (Instant::now(), key.to_owned());
    let tasks = processes.iter().flat_map(|process| std::iter::repeat_n(process.limits.clone(), TASKS)).map(
        |limits| {
            let key = key.clone();
            tokio::spawn(async move {
                let (mut allowed, mut last_full) = (0, start);
                while start.elapsed() < time {
                    let decision = take_one(&limits, &key, rate).await;
                    allowed += u64::from(decision.allowed);
                    if decision.states[0].remaining + 1 >= rate.quota() {
                        last_full = Instant::now();
                    }
                    // In process, nothing else yields.
                    tokio::task::yield_now().await;
                }
                (allowed, last_full)
            })
        },
    );
    let results = futures::future::try_join_all(tasks).await.unwrap();
    let mut allowed = results.iter().map(|(allowed, _)| allowed).sum::<u64>();
    let mut last_full = results.iter().map(|(_, last_full)| *last_full).max().unwrap();
    let mut last = Instant::now();
    loop {
        let decision = take_one(&processes[0].limits, &key, rate).await;
        if !decision.allowed {
            break;
        }
        allowed += 1;
        last = Instant::now();
        if decision.states[0].remaining + 1 >= rate.quota() {
            last_full = last;
        }
    }
    let (max, min) = (refilled(start.elapsed()), refilled(last.duration_since(last_full)));
    LoadResult { allowed, max: rate.quota() + max, min: rate.quota() + min }
}

async fn take_one(limits: &Limits, key: &str, rate: Rate) -> LimitDecision {
    let decision = limits.take(&[Check { policy: "one", kind: KeyKind::Address, key, rate }]).await;
    assert!(decision.shared);
    decision
}

pub(crate) fn check<'a>(policy: &'static str, key: &'a str, rate: &str) -> Check<'a> {
    let kind = if policy == "player" { KeyKind::User } else { KeyKind::Address };
    Check { policy, kind, key, rate: rate.parse::<Rate>().unwrap() }
}

//! Limits to test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hot::Hot;
use limits::{Check, Limits, Metrics, Rate, Verdict};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use testkit::{Keyspace, Redis};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a healthy server ever takes, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Where limits are, for any number of processes.
#[derive(Debug)]
pub(crate) struct Setup {
    redis: Option<Keyspace>,
}

impl Setup {
    pub(crate) fn memory() -> Self {
        Self { redis: None }
    }

    pub(crate) fn redis(redis: &Redis) -> Self {
        Self { redis: Some(redis.keyspace()) }
    }

    pub(crate) async fn open(&self) -> World {
        let url = self.redis.as_ref().map(|redis| redis.url().to_owned());
        self.open_at(url, TIMEOUT).await
    }

    /// Reaches the server in another way.
    pub(crate) async fn open_at(&self, url: Option<String>, timeout: Duration) -> World {
        let hot = match url {
            None => Hot::Memory,
            Some(url) => Hot::Redis(hot::Redis::open(&url, TIMEOUT).await.unwrap()),
        };
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let prefix = self.redis.as_ref().map_or("", |redis| redis.prefix());
        World { limits: Limits::new(&hot, prefix, timeout, metrics), registry: Arc::new(registry) }
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

    /// Asks from several tasks until the time is over; returns how many were allowed, and the time from before the first
    /// question until after the last answer.
    pub(crate) async fn rush(&self, key: &str, rate: &str, tasks: usize, time: Duration) -> (u64, Duration) {
        let (started, rate) = (Instant::now(), rate.parse().unwrap());
        let asking = (0..tasks).map(|_| {
            let (limits, key) = (self.limits.clone(), key.to_owned());
            tokio::spawn(async move {
                let mut allowed = 0;
                while started.elapsed() < time {
                    let verdict = limits.take(&[Check { policy: "one", key: &key, rate }]).await;
                    assert!(verdict.shared);
                    allowed += u64::from(verdict.allowed);
                    // In process, nothing else gives way.
                    tokio::task::yield_now().await;
                }
                allowed
            })
        });
        let allowed = futures::future::try_join_all(asking).await.unwrap().iter().sum();
        (allowed, started.elapsed())
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut encoded = String::new();
        text::encode(&mut encoded, &self.registry).unwrap();
        let line = encoded.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }
}

pub(crate) fn check<'a>(policy: &'static str, key: &'a str, rate: &str) -> Check<'a> {
    Check { policy, key, rate: rate.parse::<Rate>().unwrap() }
}

//! Buckets in Redis, which any number of processes share.

mod keys;

use std::sync::LazyLock;
use std::time::Duration;

use redis::{ErrorKind, Script};

use self::keys::Keys;
use crate::{Check, Verdict};

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("shared/take.lua")));

#[derive(Clone, Debug)]
pub(crate) struct Shared {
    redis: redis_store::Redis,
    keys: Keys,
    timeout: Duration,
}

impl Shared {
    pub(crate) fn new(redis: redis_store::Redis, prefix: &str, timeout: Duration) -> Self {
        Self { redis, keys: Keys::new(prefix), timeout }
    }

    /// Decides. When no answer comes in time, Redis may or may not have taken: that errs on the strict side.
    pub(crate) async fn take(&self, checks: &[Check<'_>]) -> Result<Verdict, redis_store::Error> {
        let mut take = TAKE.prepare_invoke();
        for check in checks {
            take.key(self.keys.bucket(check.policy, check.key));
            take.arg(check.rate.interval()).arg(check.rate.quota());
        }
        let mut connection = self.redis.connection.clone();
        let answer = tokio::time::timeout(self.timeout, take.invoke_async(&mut connection)).await;
        let (allowed, debts): (bool, Vec<u64>) = match answer {
            Ok(answer) => answer?,
            Err(_) => return Err(redis::RedisError::from((ErrorKind::Io, "no answer in time")).into()),
        };
        Ok(Verdict::new(checks, allowed, &debts, true))
    }
}

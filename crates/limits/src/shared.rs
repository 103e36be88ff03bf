//! Buckets in Redis, which any number of processes share.

mod keys;

use std::time::Duration;

use redis::ErrorKind;
use redis_store::{Key, Script, Trial, script};

use self::keys::Keys;
use crate::{Check, Verdict};

static TAKE: Script = script!("shared/take.lua");

/// Shows whether a server runs the script.
pub static TRIALS: [Trial; 1] =
    [Trial { script: &TAKE, name: "limits/take.lua", keys: &["bucket"], args: &["1000000", "10"] }];

#[derive(Clone, Debug)]
pub(crate) struct Shared {
    redis: redis_store::Redis,
    keys: Keys,
    timeout: Duration,
}

impl Shared {
    pub(crate) fn new(redis: redis_store::Redis, prefix: &str, timeout: Duration) -> Self {
        Self { keys: Keys::new(&redis, prefix), redis, timeout }
    }

    /// Decides. When no answer comes in time, Redis may or may not have taken: that errs on the strict side.
    pub(crate) async fn take(&self, checks: &[Check<'_>]) -> Result<Verdict, redis_store::Error> {
        let buckets: Vec<Key> =
            checks.iter().map(|check| self.keys.bucket(check.policy, check.key)).collect();
        let mut take = TAKE.call(&buckets);
        for check in checks {
            take.arg(check.rate.interval()).arg(check.rate.quota());
        }
        let answer = tokio::time::timeout(self.timeout, take.run(self.redis.connection.clone())).await;
        let (allowed, debts): (bool, Vec<u64>) = match answer {
            Ok(answer) => answer?,
            Err(_) => return Err(redis::RedisError::from((ErrorKind::Io, "no answer in time")).into()),
        };
        Ok(Verdict::new(checks, allowed, &debts, true))
    }
}

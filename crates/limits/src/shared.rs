//! Buckets in Redis, shared by all processes.

mod keys;

use std::time::Duration;

use redis::ErrorKind;
use redis_store::{Key, Script, Trial, script};

use self::keys::Keys;
use crate::{Check, LimitDecision};

static TAKE: Script = script!("shared/take.lua");

/// Checks whether a server can run the script.
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

    /// Takes a token from each bucket, or from none. After a timeout Redis may have taken the tokens, which only makes the limit
    /// stricter.
    pub(crate) async fn take(&self, checks: &[Check<'_>]) -> Result<LimitDecision, redis_store::Error> {
        let buckets: Vec<Key> =
            checks.iter().map(|check| self.keys.bucket(check.policy, check.key)).collect();
        let mut take = TAKE.call(&buckets);
        for check in checks {
            take.arg(check.rate.interval()).arg(check.rate.quota());
        }
        let reply = tokio::time::timeout(self.timeout, take.run(self.redis.connection.clone())).await;
        let (allowed, debts): (bool, Vec<u64>) = match reply {
            Ok(reply) => reply?,
            Err(_) => return Err(redis::RedisError::from((ErrorKind::Io, "no reply in time")).into()),
        };
        Ok(LimitDecision::new(checks, allowed, &debts, true))
    }
}

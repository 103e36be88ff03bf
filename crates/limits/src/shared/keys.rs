//! Builds every key of the limits.

use redis_store::{Key, KeySpace};

/// Builds keys.
#[derive(Clone, Debug)]
pub(super) struct Keys(KeySpace);

impl Keys {
    pub(super) fn new(redis: &redis_store::Redis, prefix: &str) -> Self {
        Self(redis.key_space("limits", prefix))
    }

    /// When the bucket is full again, in microseconds of the server's clock. Policies have no colon, so no key can be taken
    /// for one of another policy.
    pub(super) fn bucket(&self, policy: &str, key: &str) -> Key {
        self.0.key(&["limit:", policy, ":", key].concat())
    }
}

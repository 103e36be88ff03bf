//! The Redis keys of rate limits.

use redis_store::{Key, KeySpace};

/// Builds the keys.
#[derive(Clone, Debug)]
pub(super) struct Keys(KeySpace);

impl Keys {
    pub(super) fn new(redis: &redis_store::Redis, prefix: &str) -> Self {
        Self(redis.key_space("limits", prefix))
    }

    /// Returns the key of a bucket. Its value is the time when the bucket is full again, in microseconds of the server's clock. Policies
    /// contain no colon, so keys of two policies never collide.
    pub(super) fn bucket(&self, policy: &str, key: &str) -> Key {
        self.0.key(&["limit:", policy, ":", key].concat())
    }
}

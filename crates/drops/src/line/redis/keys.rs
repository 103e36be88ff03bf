//! The names of all Redis keys.

use redis_store::{Key, KeySpace};

use crate::DropId;

/// Builds key names. Where hash tags are on, the keys of one drop share a tag and thus a cluster slot; drops spread over the slots.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    redis: redis_store::Redis,
    prefix: String,
}

impl Keys {
    pub(super) fn new(redis: &redis_store::Redis, prefix: &str) -> Self {
        Self { redis: redis.clone(), prefix: prefix.to_owned() }
    }

    fn space(&self, drop: DropId) -> KeySpace {
        self.redis.key_space(&format!("drops:{drop}"), &self.prefix)
    }

    fn key(&self, drop: DropId, name: &str) -> Key {
        self.space(drop).key_of(&format!("drop:{drop}:"), name)
    }

    /// A sorted set of user ids by place.
    pub(super) fn line(&self, drop: DropId) -> Key {
        self.key(drop, "line")
    }

    /// Exists if and only if the line was completely filled.
    pub(super) fn epoch(&self, drop: DropId) -> Key {
        self.key(drop, "epoch")
    }

    /// The token of the fill in progress. The key expires with its lease.
    pub(super) fn filling(&self, drop: DropId) -> Key {
        self.key(drop, "filling")
    }

    pub(super) fn all(&self, drop: DropId) -> [Key; 3] {
        [self.line(drop), self.epoch(drop), self.filling(drop)]
    }
}

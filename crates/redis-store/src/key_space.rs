//! Names of keys and channels.

use std::fmt;
use std::sync::Arc;

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// Whether the keys of a service share a hash tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashTags {
    /// A key is the configured prefix and a name.
    Off,
    /// A key starts with a hash tag of the service and its prefix. A Redis Cluster hashes only the tag, so all keys of the service are in
    /// one slot and one script can access them.
    On,
}

/// Builds the keys and channels of one service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KeySpace {
    base: Arc<str>,
}

impl KeySpace {
    /// Creates the key space of a service. The name of the service appears only in hash tags.
    pub fn new(service: &str, prefix: &str, tags: HashTags) -> Self {
        let base = match tags {
            HashTags::Off => prefix.into(),
            // Starts with the service, because Redis ignores an empty tag and the prefix may be empty.
            HashTags::On => format!("{{{service}:{prefix}}}").into(),
        };
        Self { base }
    }

    pub fn key(&self, name: &str) -> Key {
        Key([&self.base, name].concat())
    }

    /// Builds a key whose name has two parts, usually a kind and an id.
    pub fn key_of(&self, kind: &str, id: &str) -> Key {
        Key([&self.base, kind, id].concat())
    }

    /// Builds a key that starts with the prefix of another program. The hash tag still applies: Redis finds it anywhere.
    pub fn key_behind(&self, foreign: &str, name: &str) -> Key {
        Key([foreign, &self.base, name].concat())
    }

    /// Builds the stem of keys whose ids a script learns only while it runs. The script declares the stem as one of its `KEYS` and appends
    /// ids to it. With hash tags, such keys are in the same slot as the declared ones.
    pub fn stem(&self, kind: &str) -> Key {
        self.key(kind)
    }

    /// Builds the name of a channel. Channels have no slot: every node of a cluster receives their messages.
    pub fn channel(&self, name: &str) -> String {
        [&self.base, name].concat()
    }
}

/// The name of a key. Only a [`KeySpace`] creates one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ToRedisArgs for Key {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(self.0.as_bytes());
    }
}

impl ToSingleRedisArg for Key {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_without_hash_tags_are_the_prefix_and_the_name() {
        let space = KeySpace::new("matchmaking", "game:", HashTags::Off);
        assert_eq!(space.key("allTickets").as_str(), "game:allTickets");
        assert_eq!(space.key_of("assign:", "t1").as_str(), "game:assign:t1");
        assert_eq!(space.key_behind("lock:0:", "name").as_str(), "lock:0:game:name");
        assert_eq!(space.stem("assign:").as_str(), "game:assign:");
        assert_eq!(space.channel("gone"), "game:gone");
    }

    #[test]
    fn every_key_of_a_tagged_space_has_the_same_tag() {
        // Redis Cluster hashes the text between the first brace and the next closing one, unless it is empty.
        let tag = |key: Key| {
            let (_, rest) = key.as_str().split_once('{').unwrap();
            rest.split_once('}').unwrap().0.to_owned()
        };
        for prefix in ["", "game:", "{game}", "}"] {
            let space = KeySpace::new("sessions", prefix, HashTags::On);
            let keys = [
                space.key("a{b}"),
                space.key_of("session:", "1"),
                space.key_behind("lock:0:", "c"),
                space.stem("session:"),
            ];
            let tags = keys.map(tag);
            assert!(!tags[0].is_empty(), "{prefix}");
            assert!(tags.iter().all(|tag| *tag == tags[0]), "{tags:?}");
            let other = KeySpace::new("limits", prefix, HashTags::On);
            assert_ne!(tag(other.key("a")), tags[0], "services have different slots");
        }
    }
}

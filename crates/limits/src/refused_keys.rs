//! The keys that are refused most, in bounded memory.
//!
//! The algorithm is Space-Saving: a fixed number of counters. A new key takes the counter with the smallest count and continues from it,
//! so a count is too large by at most the count that it took over, and a key that is refused often is never missed.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use base::Timestamp;

use crate::{Check, Rule};

/// How many keys have a counter. More than are shown, so that the counts of those shown are exact in all but a flood.
const CAPACITY: usize = 256;

/// How long a key is kept after its last refusal.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);

/// A key that was refused within the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedKey {
    pub rule: Rule,
    pub key: String,
    /// How often it was refused since `first`.
    pub refused: u64,
    /// By how much `refused` may be too large. 0 unless there were more refused keys than counters.
    pub error: u64,
    pub first: Timestamp,
    pub last: Timestamp,
}

#[derive(Debug)]
pub(crate) struct RefusedKeys {
    hasher: RandomState,
    /// By the hash of rule and key, so that a refusal of a known key allocates nothing.
    keys: HashMap<u64, RefusedKey>,
    capacity: usize,
}

impl Default for RefusedKeys {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl RefusedKeys {
    fn with_capacity(capacity: usize) -> Self {
        Self { hasher: RandomState::new(), keys: HashMap::new(), capacity }
    }

    pub(crate) fn record(&mut self, check: &Check<'_>, now: Timestamp) {
        let rule = check.rule();
        let hash = self.hasher.hash_one((rule, check.key));
        if let Some(known) = self.keys.get_mut(&hash) {
            known.refused += 1;
            known.last = now;
            return;
        }
        let error = if self.keys.len() < self.capacity { 0 } else { self.remove_smallest() };
        let key = check.key.to_owned();
        self.keys.insert(hash, RefusedKey { rule, key, refused: error + 1, error, first: now, last: now });
    }

    /// Forgets keys that were not refused for an hour.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        self.keys.retain(|_, key| now.distance(key.last) < KEPT_FOR);
    }

    /// Returns the keys that were refused most, the worst first.
    pub(crate) fn worst(&self, limit: usize) -> Vec<RefusedKey> {
        let mut keys: Vec<&RefusedKey> = self.keys.values().collect();
        keys.sort_unstable_by_key(|key| (std::cmp::Reverse(key.refused - key.error), key.rule, &key.key));
        keys.into_iter().take(limit).cloned().collect()
    }

    /// Removes the key with the smallest count, and returns the count.
    fn remove_smallest(&mut self) -> u64 {
        let smallest =
            self.keys.iter().min_by_key(|(_, key)| key.refused).map(|(hash, key)| (*hash, key.refused));
        smallest.map_or(0, |(hash, refused)| {
            self.keys.remove(&hash);
            refused
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyKind, Rate};

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn check(key: &str) -> Check<'_> {
        Check { policy: "read", kind: KeyKind::Address, key, rate: Rate::once_in(1) }
    }

    #[test]
    fn frequent_keys_survive_a_flood_of_others_in_bounded_memory() {
        let mut keys = RefusedKeys::with_capacity(20);
        for number in 0..10_000 {
            keys.record(&check(&format!("flood {number}")), NOW);
            if number % 5 == 0 {
                keys.record(&check("worst"), NOW);
            }
            if number % 10 == 0 {
                keys.record(&check("second"), NOW);
            }
        }
        assert_eq!(keys.keys.len(), 20);
        let worst = keys.worst(3);
        assert_eq!((worst[0].key.as_str(), worst[1].key.as_str()), ("worst", "second"));
        for (key, real) in worst.iter().zip([2_000, 1_000]) {
            assert!(key.refused >= real && key.refused - key.error <= real, "{key:?}");
        }
        assert_eq!(worst.len(), 3);
    }

    #[test]
    fn counts_are_exact_while_there_is_room() {
        let mut keys = RefusedKeys::default();
        for key in ["a", "b", "a"] {
            keys.record(&check(key), NOW);
        }
        keys.record(&check("a"), NOW.after(Duration::from_secs(5)));
        let user = Check { kind: KeyKind::User, ..check("a") };
        keys.record(&user, NOW);
        let worst = keys.worst(10);
        let counts: Vec<(&str, KeyKind, u64, u64)> =
            worst.iter().map(|key| (key.key.as_str(), key.rule.kind, key.refused, key.error)).collect();
        assert_eq!(
            counts,
            [("a", KeyKind::Address, 3, 0), ("b", KeyKind::Address, 1, 0), ("a", KeyKind::User, 1, 0)]
        );
        assert_eq!((worst[0].first, worst[0].last), (NOW, NOW.after(Duration::from_secs(5))));
    }

    #[test]
    fn keys_are_forgotten_an_hour_after_their_last_refusal() {
        let mut keys = RefusedKeys::default();
        keys.record(&check("old"), NOW);
        keys.record(&check("new"), NOW.after(Duration::from_secs(60)));
        keys.sweep(NOW.after(KEPT_FOR));
        let left: Vec<String> = keys.worst(10).into_iter().map(|key| key.key).collect();
        assert_eq!(left, ["new"]);
    }
}

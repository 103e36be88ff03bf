//! Access tokens that were found good, so that to look at one again costs a hash and a lookup.
//!
//! The key is the SHA-256 of the whole token, signature included: nothing that was not checked is ever found. Entries end with
//! their token, and with the key that signed it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use base::Timestamp;

use crate::claims::Access;
use crate::keys::{Fingerprint, Keys};
use crate::secret::sha256;

/// How many parts there are, each with its own lock.
const SHARDS: usize = 16;
/// How many tokens one part holds: 10,000 in all.
const SHARD_SIZE: usize = 625;

/// The tokens that were found good.
#[derive(Debug)]
pub(crate) struct Remembered {
    shards: [RwLock<HashMap<[u8; 32], Entry>>; SHARDS],
    /// Of the keys. What was checked with older ones is not taken in any more.
    generation: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    access: Arc<Access>,
    key: Fingerprint,
    /// From then on it is not good any more.
    until: Timestamp,
}

/// A token that was found good.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) access: Arc<Access>,
    /// The key that it was checked with, and its generation.
    pub(crate) key: Fingerprint,
    pub(crate) generation: u64,
    /// From then on it is not good any more.
    pub(crate) until: Timestamp,
}

/// A token as it is looked up.
#[derive(Clone, Copy)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(crate) fn of(token: &str) -> Self {
        Self(sha256(token.as_bytes()))
    }
}

impl Remembered {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()), generation: AtomicU64::new(0) }
    }

    pub(crate) fn get(&self, token: TokenHash, now: Timestamp) -> Option<Arc<Access>> {
        let shard = self.shard(token).read().unwrap_or_else(PoisonError::into_inner);
        let entry = shard.get(&token.0)?;
        (now < entry.until).then(|| entry.access.clone())
    }

    /// Remembers a token, unless the key that it was checked with is of an older generation.
    pub(crate) fn put(&self, token: TokenHash, checked: Checked, now: Timestamp) {
        let Checked { access, key, generation, until } = checked;
        let mut shard = self.shard(token).write().unwrap_or_else(PoisonError::into_inner);
        // Asked under the lock: after this, whoever changes the keys will come by here.
        if self.generation.load(Ordering::SeqCst) != generation {
            return;
        }
        if shard.len() >= SHARD_SIZE {
            make_room(&mut shard, now);
        }
        shard.insert(token.0, Entry { access, key, until });
    }

    /// Forgets what was signed with keys that are no more.
    pub(crate) fn retain(&self, generation: u64, keys: &Keys) {
        self.generation.store(generation, Ordering::SeqCst);
        for shard in &self.shards {
            shard.write().unwrap_or_else(PoisonError::into_inner).retain(|_, entry| keys.has(&entry.key));
        }
    }

    fn shard(&self, token: TokenHash) -> &RwLock<HashMap<[u8; 32], Entry>> {
        &self.shards[usize::from(token.0[0]) % SHARDS]
    }
}

/// Forgets what has expired, and where that is little, some of the others as well: it only means to check them again.
fn make_room(shard: &mut HashMap<[u8; 32], Entry>, now: Timestamp) {
    shard.retain(|_, entry| now < entry.until);
    let mut surplus = shard.len().saturating_sub(SHARD_SIZE * 7 / 8);
    shard.retain(|_, _| {
        let goes = surplus > 0;
        surplus -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn access() -> Arc<Access> {
        Arc::new(Access {
            issuer: String::new(),
            subject: String::new(),
            name: None,
            roles: Vec::new(),
            is_operator: false,
            is_readonly_operator: false,
            is_service: false,
            rights: Vec::new(),
            client: None,
            sid: None,
            expires_at: NOW,
        })
    }

    /// Good for a second.
    fn checked(generation: u64) -> Checked {
        Checked { access: access(), key: [0; 32], generation, until: NOW.after(Duration::from_secs(1)) }
    }

    fn keys(n: &str) -> Keys {
        let set = format!(r#"{{"keys":[{{"kty":"RSA","n":"{n}","e":"AQAB"}}]}}"#);
        Keys::parse(set.as_bytes()).unwrap()
    }

    fn count(remembered: &Remembered) -> usize {
        remembered.shards.iter().map(|shard| shard.read().unwrap().len()).sum()
    }

    #[test]
    fn a_token_is_known_until_it_expires() {
        let remembered = Remembered::new();
        let (token, until) = (TokenHash::of("token"), checked(0).until);
        remembered.put(token, checked(0), NOW);
        assert!(remembered.get(token, NOW).is_some());
        assert!(remembered.get(TokenHash::of("other"), NOW).is_none());
        assert!(remembered.get(token, until).is_none());
    }

    #[test]
    fn no_more_than_so_many_are_kept_and_new_ones_always_find_room() {
        let remembered = Remembered::new();
        for number in 0..30_000 {
            let token = TokenHash::of(&number.to_string());
            remembered.put(token, checked(0), NOW);
            assert!(remembered.get(token, NOW).is_some());
        }
        let count = count(&remembered);
        assert!((5_000..=SHARDS * SHARD_SIZE).contains(&count), "{count}");
    }

    #[test]
    fn what_was_checked_with_older_keys_comes_too_late() {
        let remembered = Remembered::new();
        let token = TokenHash::of("token");
        remembered.retain(1, &keys("AQAB"));
        remembered.put(token, checked(0), NOW);
        assert_eq!(count(&remembered), 0);
        remembered.put(token, checked(1), NOW);
        assert_eq!(count(&remembered), 1);
        remembered.retain(2, &keys("AQAB"));
        assert_eq!(count(&remembered), 0, "its key is not among them");
    }
}

//! A cache of verified access tokens: verifying one again costs a hash and a lookup.
//!
//! The key is the SHA-256 of the whole token including its signature, so only an identical token hits. An entry is dropped when
//! its token expires and when the issuer withdraws the key that signed it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use base::Timestamp;
use base::cache::make_room;

use crate::claims::AccessToken;
use crate::keys::{KeyFingerprint, Keys};
use crate::secret::sha256;

/// The number of shards, each with its own lock.
const SHARDS: usize = 16;
/// The most tokens in one shard: 10,000 in all.
const SHARD_SIZE: usize = 625;

/// The verified tokens.
#[derive(Debug)]
pub(crate) struct TokenCache {
    shards: [RwLock<HashMap<[u8; 32], CachedToken>>; SHARDS],
    /// The generation of the issuer's keys. A token verified with an older generation is not inserted.
    generation: AtomicU64,
}

#[derive(Debug)]
struct CachedToken {
    access: Arc<AccessToken>,
    key: KeyFingerprint,
    /// When it expires.
    until: Timestamp,
}

/// A token that was just verified.
#[derive(Debug)]
pub(crate) struct VerifiedToken {
    pub(crate) access: Arc<AccessToken>,
    /// The key that verified it, and the generation of the key set.
    pub(crate) key: KeyFingerprint,
    pub(crate) generation: u64,
    /// When it expires.
    pub(crate) until: Timestamp,
}

/// The SHA-256 of a token, by which it is looked up.
#[derive(Clone, Copy)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(crate) fn new(token: &str) -> Self {
        Self(sha256(token.as_bytes()))
    }
}

impl TokenCache {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()), generation: AtomicU64::new(0) }
    }

    pub(crate) fn get(&self, token: TokenHash, now: Timestamp) -> Option<Arc<AccessToken>> {
        let shard = self.shard(token).read().unwrap_or_else(PoisonError::into_inner);
        let entry = shard.get(&token.0)?;
        (now < entry.until).then(|| entry.access.clone())
    }

    /// Caches a token, unless it was verified with an older generation of keys.
    pub(crate) fn put(&self, token: TokenHash, verified: VerifiedToken, now: Timestamp) {
        let VerifiedToken { access, key, generation, until } = verified;
        let mut shard = self.shard(token).write().unwrap_or_else(PoisonError::into_inner);
        // Checked under the lock: if the generation changes later, `retain` still visits this shard.
        if self.generation.load(Ordering::SeqCst) != generation {
            return;
        }
        if shard.len() >= SHARD_SIZE {
            make_room(&mut shard, SHARD_SIZE, |entry| now < entry.until);
        }
        shard.insert(token.0, CachedToken { access, key, until });
    }

    /// Drops the tokens whose key is not in `keys`.
    pub(crate) fn retain(&self, generation: u64, keys: &Keys) {
        self.generation.store(generation, Ordering::SeqCst);
        for shard in &self.shards {
            shard
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|_, entry| keys.contains(&entry.key));
        }
    }

    fn shard(&self, token: TokenHash) -> &RwLock<HashMap<[u8; 32], CachedToken>> {
        &self.shards[usize::from(token.0[0]) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn access() -> Arc<AccessToken> {
        Arc::new(AccessToken {
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

    /// Valid for a second.
    fn verified(generation: u64) -> VerifiedToken {
        VerifiedToken { access: access(), key: [0; 32], generation, until: NOW.after(Duration::from_secs(1)) }
    }

    fn keys(n: &str) -> Keys {
        let set = format!(r#"{{"keys":[{{"kty":"RSA","n":"{n}","e":"AQAB"}}]}}"#);
        Keys::parse(set.as_bytes()).unwrap()
    }

    fn count(cache: &TokenCache) -> usize {
        cache.shards.iter().map(|shard| shard.read().unwrap().len()).sum()
    }

    #[test]
    fn token_is_cached_until_it_expires() {
        let cache = TokenCache::new();
        let (token, until) = (TokenHash::new("token"), verified(0).until);
        cache.put(token, verified(0), NOW);
        assert!(cache.get(token, NOW).is_some());
        assert!(cache.get(TokenHash::new("other"), NOW).is_none());
        assert!(cache.get(token, until).is_none());
    }

    #[test]
    fn cache_is_bounded_and_new_tokens_always_fit() {
        let cache = TokenCache::new();
        for number in 0..30_000 {
            let token = TokenHash::new(&number.to_string());
            cache.put(token, verified(0), NOW);
            assert!(cache.get(token, NOW).is_some());
        }
        let count = count(&cache);
        assert!((5_000..=SHARDS * SHARD_SIZE).contains(&count), "{count}");
    }

    #[test]
    fn token_verified_with_older_keys_is_not_cached() {
        let cache = TokenCache::new();
        let token = TokenHash::new("token");
        cache.retain(1, &keys("AQAB"));
        cache.put(token, verified(0), NOW);
        assert_eq!(count(&cache), 0);
        cache.put(token, verified(1), NOW);
        assert_eq!(count(&cache), 1);
        cache.retain(2, &keys("AQAB"));
        assert_eq!(count(&cache), 0, "its key is not among them");
    }
}

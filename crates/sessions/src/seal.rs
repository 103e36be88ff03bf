//! Encrypts data that others can read: tokens in Redis, and the state of a sign-in in the browser's cookie.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use config::Secret;
use sha2::{Digest, Sha256};

/// Seals and opens texts (AES-256-GCM). Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Sealer(Arc<[RandomizedNonceKey]>);

/// A key could not be created or used. Never happens with keys of the right length.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the cipher failed")]
pub struct CipherFailed;

impl Sealer {
    /// Seals with the first secret and opens with any of them, so that secrets can be rotated.
    pub fn new(secrets: &[Secret]) -> Result<Self, CipherFailed> {
        let key = |secret: &Secret| {
            let key = Sha256::digest(secret.expose());
            RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(|_| CipherFailed)
        };
        let keys = secrets.iter().map(key).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Self::ephemeral() } else { Ok(Self(keys.into())) }
    }

    /// Generates a random key that is lost with the process.
    fn ephemeral() -> Result<Self, CipherFailed> {
        let mut key = [0; 32];
        aws_lc_rs::rand::fill(&mut key).map_err(|_| CipherFailed)?;
        let key = RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(|_| CipherFailed)?;
        Ok(Self(vec![key].into()))
    }

    /// Seals a text. It opens only for the same `purpose`, so one sealed text cannot stand in for another.
    pub fn seal(&self, purpose: &str, text: &str) -> Result<String, CipherFailed> {
        let mut sealed = text.as_bytes().to_vec();
        let key = self.0.first().ok_or(CipherFailed)?;
        let nonce =
            key.seal_in_place_append_tag(Aad::from(purpose), &mut sealed).map_err(|_| CipherFailed)?;
        let mut whole = nonce.as_ref().to_vec();
        whole.append(&mut sealed);
        Ok(BASE64.encode(whole))
    }

    /// Opens a text that was sealed for `purpose`. Returns none if it was changed or its key is unknown.
    pub fn open(&self, purpose: &str, sealed: &str) -> Option<String> {
        let whole = BASE64.decode(sealed).ok()?;
        let (nonce, rest) = whole.split_at_checked(NONCE_LEN)?;
        self.0.iter().find_map(|key| {
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let mut text = rest.to_vec();
            let text = key.open_in_place(nonce, Aad::from(purpose), &mut text).ok()?;
            String::from_utf8(text.to_vec()).ok()
        })
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("keys", &self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use config::{Setting, Value};

    use super::*;

    fn sealer(secrets: &[&str]) -> Sealer {
        let secret = |text: &&str| Secret::parse(&Value::Text((*text).to_owned())).unwrap();
        Sealer::new(&secrets.iter().map(secret).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn sealed_text_opens_for_the_same_purpose_only() {
        let ours = sealer(&["one"]);
        let sealed = ours.seal("login", "text").unwrap();
        assert!(!sealed.contains("text"));
        assert_ne!(sealed, ours.seal("login", "text").unwrap());
        assert_eq!(ours.open("login", &sealed).as_deref(), Some("text"));
        assert_eq!(ours.open("session", &sealed), None);
        for (at, _) in sealed.char_indices() {
            let mut changed = sealed.clone();
            let other = if changed[at..].starts_with('A') { "B" } else { "A" };
            changed.replace_range(at..=at, other);
            assert_eq!(ours.open("login", &changed), None, "{at}");
        }
        for wrong in ["", "AAAA", "no base64!", &sealed[..20]] {
            assert_eq!(ours.open("login", wrong), None);
        }
    }

    #[test]
    fn secrets_can_be_rotated() {
        let (old, both, new) = (sealer(&["old"]), sealer(&["new", "old"]), sealer(&["new"]));
        let sealed = old.seal("p", "text").unwrap();
        assert_eq!(both.open("p", &sealed).as_deref(), Some("text"));
        assert_eq!(new.open("p", &sealed), None);
        assert_eq!(new.open("p", &both.seal("p", "text").unwrap()).as_deref(), Some("text"));
    }

    #[test]
    fn without_secrets_each_process_has_its_own_key() {
        let sealed = sealer(&[]).seal("p", "text").unwrap();
        assert_eq!(sealer(&[]).open("p", &sealed), None);
    }
}

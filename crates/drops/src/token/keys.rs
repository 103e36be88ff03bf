//! The keys of admission tokens: derived from secrets, published as a JWKS.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

pub(super) const ALGORITHM: &str = "EdDSA";
/// The context of the key derivation: keys derived from the same secret for another purpose differ.
const PURPOSE: &[u8] = b"playhouse drops admission token v1";

/// A key that signs and verifies.
pub(super) struct Key {
    pub(super) id: String,
    pair: Ed25519KeyPair,
}

/// The keys that verify admission tokens (RFC 7517).
#[derive(Debug, Serialize, ToSchema)]
pub struct JsonWebKeys {
    pub keys: Vec<JsonWebKey>,
}

/// A public Ed25519 key (RFC 8037).
#[derive(Debug, Serialize, ToSchema)]
pub struct JsonWebKey {
    #[schema(example = "OKP")]
    kty: &'static str,
    #[schema(example = "Ed25519")]
    crv: &'static str,
    /// The public key in base64url.
    x: String,
    /// The key's thumbprint (RFC 7638).
    pub(super) kid: String,
    #[schema(example = "EdDSA")]
    alg: &'static str,
    #[serde(rename = "use")]
    #[schema(example = "sig")]
    purpose: &'static str,
}

/// No key could be derived from a secret. This should not happen.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no signing key can be derived from the secret")]
pub struct KeyDerivationError;

impl Key {
    pub(super) fn derive(secret: &[u8]) -> Result<Self, KeyDerivationError> {
        let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).map_err(|_| KeyDerivationError)?;
        let x = BASE64.encode(pair.public_key().as_ref());
        // RFC 7638: the required members, in order and without spaces.
        let thumbprint = digest::digest(
            &digest::SHA256,
            json!({ "crv": "Ed25519", "kty": "OKP", "x": x }).to_string().as_bytes(),
        );
        Ok(Self { id: BASE64.encode(thumbprint), pair })
    }

    pub(super) fn public(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// Signs a message. Returns the signature in base64url.
    pub(super) fn sign(&self, message: &str) -> String {
        BASE64.encode(self.pair.sign(message.as_bytes()))
    }

    pub(super) fn has_signed(&self, message: &str, signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.public()).verify(message.as_bytes(), signature).is_ok()
    }

    pub(super) fn published(&self) -> JsonWebKey {
        JsonWebKey {
            kty: "OKP",
            crv: "Ed25519",
            x: BASE64.encode(self.public()),
            kid: self.id.clone(),
            alg: ALGORITHM,
            purpose: "sig",
        }
    }
}

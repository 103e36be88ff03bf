//! The admission token: a player needs it to buy, and a game's own shop can verify it.
//!
//! It is a JWT (RFC 7519) signed with Ed25519 (RFC 8037):
//!
//! | part | value |
//! |---|---|
//! | header | `alg` is `EdDSA`, `typ` is [`TYPE`], `kid` names a key of the JWKS |
//! | `iss` | [`ISSUER`] |
//! | `aud` | the drop |
//! | `sub` | the user |
//! | `jti` | the admission |
//! | `iat`, `exp` | when it was signed, and when the admission expires unless the player arrives |
//!
//! # Invariants
//! - **Verification reads no store.** Any gateway, and any program that has the JWKS, can verify a token.
//! - **The first secret signs, all of them verify.** Removing a secret invalidates its tokens.
//! - **A token alone buys nothing**: a reserve checks the row of the entry again.
//! - **Clocks may differ by [`LEEWAY`].** `exp` comes from the database's clock and is compared with the gateway's. A gateway whose clock is
//!   ahead does not refuse an admission that is valid in the database. A token within the leeway buys nothing after its row has expired.
//!   `iat` is not checked.

mod keys;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use account::UserId;
use base::Timestamp;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::keys::{ALGORITHM, Key};
use crate::stock::VerifiedAdmission;
use crate::{Admission, AdmissionId, DropId};

pub use self::keys::{JsonWebKey, JsonWebKeys, KeyDerivationError};

/// The `iss` of every token.
pub const ISSUER: &str = "playhouse/drops";
/// The `typ` of every token, so that no other token, ours or an issuer's, is accepted as one (RFC 8725, 3.11).
pub const TYPE: &str = "admission+jwt";
/// How far the clock of a gateway may be ahead of the database's. It extends no admission, since the row decides.
pub const LEEWAY: Duration = Duration::from_secs(5);
/// The size limit of a token. Ours have about 450 bytes.
const MAX_TOKEN: usize = 2_048;

/// Signs and verifies admission tokens. Cheap to clone; clones share the keys.
#[derive(Clone)]
pub struct AdmissionTokens(Arc<[Key]>);

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("it is not an admission token")]
    Malformed,
    #[error("it is not signed by a key of this game")]
    Signature,
    #[error("it has expired")]
    Expired,
    #[error("it is the admission of another player")]
    OtherPlayer,
    #[error("it is an admission to another drop")]
    OtherDrop,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
    /// Extensions that a verifier must support. We support none.
    crit: Option<Value>,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    sub: String,
    jti: String,
    iat: i64,
    exp: i64,
}

impl AdmissionTokens {
    /// Derives a key from each secret, the newest first. The first one signs, all of them verify.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, KeyDerivationError> {
        let keys = secrets.into_iter().map(Key::derive).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(KeyDerivationError) } else { Ok(Self(keys.into())) }
    }

    /// Signs the token of an admission.
    pub fn sign(&self, admission: &Admission, now: Timestamp) -> String {
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: admission.drop.to_string(),
            sub: admission.user.to_string(),
            jti: admission.id.to_string(),
            iat: now.as_millis().div_euclid(1_000),
            // Rounded up: the row of the entry decides about the last second.
            exp: admission.expires_at.as_millis().div_euclid(1_000) + 1,
        };
        let key = &self.0[0];
        let header = json!({ "alg": ALGORITHM, "kid": key.id, "typ": TYPE });
        // Claims are plain values, so serializing them cannot fail.
        let claims = serde_json::to_vec(&claims).unwrap_or_default();
        let message = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims));
        let signature = key.sign(&message);
        format!("{message}.{signature}")
    }

    /// Verifies a player's token for a drop. It accepts a token until [`LEEWAY`] after its expiry, so the caller must also check the row.
    pub fn verify(
        &self,
        token: &str,
        drop: DropId,
        user: UserId,
        now: Timestamp,
    ) -> Result<VerifiedAdmission, TokenError> {
        let claims = self.claims(token)?;
        let end = Timestamp::from_millis(claims.exp.saturating_mul(1_000)).after(LEEWAY);
        if now >= end {
            return Err(TokenError::Expired);
        }
        if claims.aud != drop.to_string() {
            return Err(TokenError::OtherDrop);
        }
        if claims.sub != user.to_string() {
            return Err(TokenError::OtherPlayer);
        }
        let admission: AdmissionId = claims.jti.parse().map_err(|_| TokenError::Malformed)?;
        Ok(VerifiedAdmission { drop, user, admission })
    }

    /// Returns the claims of a token that one of the keys signed.
    fn claims(&self, token: &str) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(TokenError::Malformed)?;
        let header: Header = decode(header)?;
        // Only our algorithm is accepted, whatever the header claims: neither `none` nor a MAC with our public key passes.
        if header.alg != ALGORITHM || header.typ != TYPE || header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
        let key = self.0.iter().find(|key| key.id == header.kid).ok_or(TokenError::Signature)?;
        let signature = BASE64.decode(signature).map_err(|_| TokenError::Malformed)?;
        if !key.has_signed(message, &signature) {
            return Err(TokenError::Signature);
        }
        let claims: Claims = decode(payload)?;
        if claims.iss == ISSUER { Ok(claims) } else { Err(TokenError::Malformed) }
    }

    /// Returns the public keys, the newest first.
    pub fn public_keys(&self) -> JsonWebKeys {
        JsonWebKeys { keys: self.0.iter().map(Key::published).collect() }
    }
}

fn decode<T: DeserializeOwned>(part: &str) -> Result<T, TokenError> {
    let bytes = BASE64.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

/// Shows the number of keys, but not the keys.
impl fmt::Debug for AdmissionTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionTokens").field("keys", &self.0.len()).finish()
    }
}

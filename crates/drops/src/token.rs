//! The admission token: what a player shows to buy, and what a game's own shop verifies by itself.
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
//! | `iat`, `exp` | when it was signed, and when the admission ends unless the player arrives |
//!
//! # Invariants
//! - **Verification reads no store.** Any gateway, and anybody who has the JWKS, verifies a token alone.
//! - **The first secret signs, all of them verify.** A secret that is removed takes its tokens with it.
//! - **A token alone buys nothing**: the row of the entry is asked again when stock is reserved.
//! - **Clocks may differ by [`LEEWAY`].** `exp` is of the database's clock and is judged by the gateway's. A gateway that is ahead does not
//!   refuse an admission which the database still honours, and one within the leeway buys nothing after its row has ended. `iat` is not judged.

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
use crate::stock::Admitted;
use crate::{Admission, AdmissionId, DropId};

pub use self::keys::{JsonWebKey, JsonWebKeys, NoKey};

/// The `iss` of every token.
pub const ISSUER: &str = "playhouse/drops";
/// The `typ` of every token, so that no other token of ours or of an issuer passes for one (RFC 8725, 3.11).
pub const TYPE: &str = "admission+jwt";
/// How far the clock of a gateway may be ahead of the database's. It lengthens no admission: the row decides.
pub const LEEWAY: Duration = Duration::from_secs(5);
/// Larger tokens are not read. Ours have about 450 bytes.
const MAX_TOKEN: usize = 2_048;

/// Signs and verifies admission tokens. Cheap to clone; clones share the keys.
#[derive(Clone)]
pub struct AdmissionTokens(Arc<[Key]>);

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
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
    /// Extensions that have to be understood. We understand none.
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
    /// Derives a key from each secret, the newest first: the first one signs, all of them verify.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, NoKey> {
        let keys = secrets.into_iter().map(Key::derive).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(NoKey) } else { Ok(Self(keys.into())) }
    }

    /// Signs the token of an admission.
    pub fn sign(&self, admission: &Admission, now: Timestamp) -> String {
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: admission.drop.to_string(),
            sub: admission.user.to_string(),
            jti: admission.id.to_string(),
            iat: now.as_millis().div_euclid(1_000),
            // Rounded up: the row of the entry decides on the last second.
            exp: admission.expires_at.as_millis().div_euclid(1_000) + 1,
        };
        let key = &self.0[0];
        let header = json!({ "alg": ALGORITHM, "kid": key.id, "typ": TYPE });
        // Claims are plain values.
        let claims = serde_json::to_vec(&claims).unwrap_or_default();
        let message = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims));
        let signature = key.sign(&message);
        format!("{message}.{signature}")
    }

    /// Verifies the token that a player shows at a drop. It is accepted until [`LEEWAY`] after its end, so the caller asks the row as well.
    pub fn verify(
        &self,
        token: &str,
        drop: DropId,
        user: UserId,
        now: Timestamp,
    ) -> Result<Admitted, Refused> {
        let claims = self.claims(token)?;
        let end = Timestamp::from_millis(claims.exp.saturating_mul(1_000)).after(LEEWAY);
        if now >= end {
            return Err(Refused::Expired);
        }
        if claims.aud != drop.to_string() {
            return Err(Refused::OtherDrop);
        }
        if claims.sub != user.to_string() {
            return Err(Refused::OtherPlayer);
        }
        let admission: AdmissionId = claims.jti.parse().map_err(|_| Refused::Malformed)?;
        Ok(Admitted { drop, user, admission })
    }

    /// Returns what a token says, if one of the keys signed it.
    fn claims(&self, token: &str) -> Result<Claims, Refused> {
        if token.len() > MAX_TOKEN {
            return Err(Refused::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(Refused::Malformed)?;
        let header: Header = decode(header)?;
        // The algorithm is ours, whatever a token says of itself: neither `none` nor a MAC with our public key passes.
        if header.alg != ALGORITHM || header.typ != TYPE || header.crit.is_some() {
            return Err(Refused::Malformed);
        }
        let key = self.0.iter().find(|key| key.id == header.kid).ok_or(Refused::Signature)?;
        let signature = BASE64.decode(signature).map_err(|_| Refused::Malformed)?;
        if !key.has_signed(message, &signature) {
            return Err(Refused::Signature);
        }
        let claims: Claims = decode(payload)?;
        if claims.iss == ISSUER { Ok(claims) } else { Err(Refused::Malformed) }
    }

    /// Returns the public keys, the newest first.
    pub fn public_keys(&self) -> JsonWebKeys {
        JsonWebKeys { keys: self.0.iter().map(Key::published).collect() }
    }
}

fn decode<T: DeserializeOwned>(part: &str) -> Result<T, Refused> {
    let bytes = BASE64.decode(part).map_err(|_| Refused::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| Refused::Malformed)
}

/// Shows how many keys there are, and none of them.
impl fmt::Debug for AdmissionTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionTokens").field("keys", &self.0.len()).finish()
    }
}

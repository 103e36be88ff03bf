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

use std::fmt;
use std::sync::Arc;

use account::UserId;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use aws_lc_rs::{digest, hmac};
use base::Timestamp;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::stock::Admitted;
use crate::{Admission, AdmissionId, DropId};

/// The `iss` of every token.
pub const ISSUER: &str = "playhouse/drops";
/// The `typ` of every token, so that no other token of ours or of an issuer passes for one (RFC 8725, 3.11).
pub const TYPE: &str = "admission+jwt";
const ALGORITHM: &str = "EdDSA";
/// Larger tokens are not read. Ours have about 450 bytes.
const MAX_TOKEN: usize = 2_048;
/// What keys are derived for: a secret that signs tokens signs nothing else.
const PURPOSE: &[u8] = b"playhouse drops admission token v1";

/// Signs and verifies admission tokens. Cheap to clone; clones share the keys.
#[derive(Clone)]
pub struct AdmissionTokens(Arc<[Key]>);

struct Key {
    id: String,
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
    kid: String,
    #[schema(example = "EdDSA")]
    alg: &'static str,
    #[serde(rename = "use")]
    #[schema(example = "sig")]
    purpose: &'static str,
}

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

/// No key could be derived from a secret. Does not happen.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no key can be made of a secret")]
pub struct NoKey;

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
        self.0[0].sign(&claims)
    }

    /// Verifies the token that a player shows at a drop.
    pub fn verify(
        &self,
        token: &str,
        drop: DropId,
        user: UserId,
        now: Timestamp,
    ) -> Result<Admitted, Refused> {
        let claims = self.claims(token)?;
        if now.as_millis() >= claims.exp.saturating_mul(1_000) {
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
        let public = UnparsedPublicKey::new(&ED25519, key.public());
        public.verify(message.as_bytes(), &signature).map_err(|_| Refused::Signature)?;
        let claims: Claims = decode(payload)?;
        if claims.iss == ISSUER { Ok(claims) } else { Err(Refused::Malformed) }
    }

    /// Returns the public keys, the newest first.
    pub fn public_keys(&self) -> JsonWebKeys {
        let key = |key: &Key| JsonWebKey {
            kty: "OKP",
            crv: "Ed25519",
            x: BASE64.encode(key.public()),
            kid: key.id.clone(),
            alg: ALGORITHM,
            purpose: "sig",
        };
        JsonWebKeys { keys: self.0.iter().map(key).collect() }
    }
}

impl Key {
    fn derive(secret: &[u8]) -> Result<Self, NoKey> {
        let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).map_err(|_| NoKey)?;
        let x = BASE64.encode(pair.public_key().as_ref());
        // RFC 7638: the members that are required, in order and without spaces.
        let thumbprint = digest::digest(
            &digest::SHA256,
            json!({ "crv": "Ed25519", "kty": "OKP", "x": x }).to_string().as_bytes(),
        );
        Ok(Self { id: BASE64.encode(thumbprint), pair })
    }

    fn public(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    fn sign(&self, claims: &Claims) -> String {
        let header = json!({ "alg": ALGORITHM, "kid": self.id, "typ": TYPE });
        // Claims are plain values.
        let claims = serde_json::to_vec(claims).unwrap_or_default();
        let message = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims));
        let signature = BASE64.encode(self.pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use account::AccountId;
    use base::id::Uuid;

    use super::*;

    const OLD: &[u8] = b"the secret of last month, of enough length";
    const NEW: &[u8] = b"the secret of this month, of enough length";
    const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_500);

    fn tokens(secrets: &[&'static [u8]]) -> AdmissionTokens {
        AdmissionTokens::new(secrets.iter().copied()).unwrap()
    }

    fn admission() -> Admission {
        Admission {
            id: AdmissionId::from_uuid(Uuid::from_u128(1)),
            drop: DropId::from_uuid(Uuid::from_u128(2)),
            user: UserId::from_uuid(Uuid::from_u128(3)),
            account: AccountId::from_uuid(Uuid::from_u128(4)),
            expires_at: Timestamp::from_millis(NOW.as_millis() + 60_000),
            arrived_at: None,
        }
    }

    fn verify(tokens: &AdmissionTokens, token: &str) -> Result<Admitted, Refused> {
        let Admission { drop, user, .. } = admission();
        tokens.verify(token, drop, user, NOW)
    }

    /// A token with these parts, and a valid signature of the key.
    fn signed(key: &Key, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
        format!("{message}.{}", BASE64.encode(key.pair.sign(message.as_bytes())))
    }

    fn part(token: &str, at: usize) -> Value {
        serde_json::from_slice(&BASE64.decode(token.split('.').nth(at).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn a_token_names_drop_user_and_admission_until_it_expires() {
        let (tokens, admission) = (tokens(&[NEW]), admission());
        let token = tokens.sign(&admission, NOW);
        let Admission { id, drop, user, .. } = admission;
        assert_eq!(verify(&tokens, &token), Ok(Admitted { drop, user, admission: id }));
        assert_eq!(
            part(&token, 1),
            json!({
                "iss": ISSUER, "aud": drop.to_string(), "sub": user.to_string(), "jti": id.to_string(),
                "iat": 1_772_366_400, "exp": 1_772_366_461,
            })
        );
        let last = Timestamp::from_millis(1_772_366_460_999);
        assert!(tokens.verify(&token, drop, user, last).is_ok(), "it never ends before its admission");
        let end = Timestamp::from_millis(1_772_366_461_000);
        assert_eq!(tokens.verify(&token, drop, user, end), Err(Refused::Expired));
    }

    #[test]
    fn a_token_is_good_for_its_player_and_its_drop_only() {
        let (tokens, admission) = (tokens(&[NEW]), admission());
        let token = tokens.sign(&admission, NOW);
        let (other_drop, other_user) = (DropId::generate(), UserId::generate());
        assert_eq!(tokens.verify(&token, admission.drop, other_user, NOW), Err(Refused::OtherPlayer));
        assert_eq!(tokens.verify(&token, other_drop, admission.user, NOW), Err(Refused::OtherDrop));
    }

    #[test]
    fn secrets_are_rotated_one_after_the_other() {
        let (old, both, new) = (tokens(&[OLD]), tokens(&[NEW, OLD]), tokens(&[NEW]));
        let before = old.sign(&admission(), NOW);
        assert!(verify(&both, &before).is_ok(), "a token of the secret before is accepted");
        let after = both.sign(&admission(), NOW);
        assert!(verify(&new, &after).is_ok(), "the first secret signs");
        assert_eq!(verify(&old, &after), Err(Refused::Signature));
        assert_eq!(
            verify(&new, &before),
            Err(Refused::Signature),
            "a secret that is removed takes its tokens with it"
        );
        let published: Vec<String> = both.public_keys().keys.into_iter().map(|key| key.kid).collect();
        assert_eq!(published, [new.0[0].id.clone(), old.0[0].id.clone()]);
    }

    #[test]
    fn a_token_that_was_changed_is_refused() {
        let tokens = tokens(&[NEW]);
        let token = tokens.sign(&admission(), NOW);
        for (at, letter) in token.char_indices() {
            let mut changed = token.clone();
            changed.replace_range(at..=at, if letter == 'A' { "B" } else { "A" });
            assert!(verify(&tokens, &changed).is_err(), "{at}: {changed}");
        }
        for wrong in
            ["", ".", "..", "...", "a.b.c", "no token", &token[..token.len() - 1], &"a".repeat(5_000)]
        {
            assert!(verify(&tokens, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_other_algorithm_type_or_issuer_passes() {
        let tokens = tokens(&[NEW]);
        let token = tokens.sign(&admission(), NOW);
        let (key, header, claims) = (&tokens.0[0], part(&token, 0), part(&token, 1));
        assert!(verify(&tokens, &signed(key, &header, &claims)).is_ok(), "the forger of this test can sign");
        let with = |name: &str, value: Value| {
            let mut header = header.clone();
            header[name] = value;
            header
        };
        let wrong = [
            with("alg", json!("none")),
            with("alg", json!("HS256")),
            with("alg", json!("eddsa")),
            with("typ", json!("JWT")),
            with("typ", json!("at+jwt")),
            with("crit", json!(["exp"])),
            with("kid", json!("another")),
            with("kid", Value::Null),
        ];
        for header in wrong {
            assert!(verify(&tokens, &signed(key, &header, &claims)).is_err(), "{header}");
        }
        // What confuses naive verifiers: no signature at all, and a MAC whose key is the public key.
        for (algorithm, signature) in [("none", String::new()), ("HS256", mac(key, &token))] {
            let header = BASE64.encode(with("alg", json!(algorithm)).to_string());
            let payload = token.split('.').nth(1).unwrap();
            assert!(verify(&tokens, &format!("{header}.{payload}.{signature}")).is_err(), "{algorithm}");
        }
        let mut foreign = claims;
        foreign["iss"] = json!("somebody else");
        assert_eq!(verify(&tokens, &signed(key, &header, &foreign)), Err(Refused::Malformed));
    }

    fn mac(key: &Key, token: &str) -> String {
        let (message, _) = token.rsplit_once('.').unwrap();
        BASE64.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.public()), message.as_bytes()))
    }

    /// Verifies tokens from the JWKS with Node's own crypto, as a shop of a game would: it shares no code with us.
    const SHOP: &str = r#"
        const { createPublicKey, verify } = require("node:crypto");
        const { jwks, tokens } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
        const verified = (token) => {
            const [header, payload, signature] = token.split(".");
            const { alg, kid } = JSON.parse(Buffer.from(header, "base64url"));
            const jwk = jwks.keys.find((key) => key.kid === kid && key.alg === alg);
            if (!jwk) return null;
            const key = createPublicKey({ key: jwk, format: "jwk" });
            const isOurs = verify(null, Buffer.from(`${header}.${payload}`), key, Buffer.from(signature, "base64url"));
            return isOurs ? JSON.parse(Buffer.from(payload, "base64url")) : null;
        };
        console.log(JSON.stringify(tokens.map(verified)));
    "#;

    #[test]
    fn a_shop_verifies_tokens_by_the_published_keys_alone() {
        let (both, foreign) = (tokens(&[NEW, OLD]), tokens(&[b"a secret that is not ours at all, really"]));
        let (new, old) = (both.sign(&admission(), NOW), tokens(&[OLD]).sign(&admission(), NOW));
        let forged = foreign.sign(&admission(), NOW);
        let asked = json!({ "jwks": both.public_keys(), "tokens": [new, old, forged] });
        let node = testkit::need!(testkit::node());
        let node = Command::new(node).args(["-e", SHOP]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut node = node.unwrap();
        node.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
        let answered = node.wait_with_output().unwrap();
        let claims: Vec<Value> = serde_json::from_slice(&answered.stdout).unwrap();
        assert_eq!(claims[0]["jti"], admission().id.to_string());
        assert_eq!(claims[1], claims[0], "both keys are published");
        assert_eq!(claims[2], Value::Null, "a forged token is none");
    }

    /// Signed by us, whatever it says: what comes after the signature is read, too.
    #[test]
    fn no_token_breaks_the_verification() {
        let tokens = tokens(&[NEW, OLD]);
        let good = tokens.sign(&admission(), NOW);
        let payload = BASE64.decode(good.split('.').nth(1).unwrap()).unwrap();
        testkit::fuzz("admission-tokens", &[good.into_bytes(), payload], |input| {
            let message = {
                let header = json!({ "alg": ALGORITHM, "kid": tokens.0[0].id, "typ": TYPE });
                format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(input))
            };
            let signature = BASE64.encode(tokens.0[0].pair.sign(message.as_bytes()));
            let signed = verify(&tokens, &format!("{message}.{signature}"));
            let plain = verify(&tokens, &String::from_utf8_lossy(input));
            signed.is_ok() || plain.is_ok()
        });
    }
}

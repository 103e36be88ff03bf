//! The keys that the issuer publishes (RFC 7517).

use config::Choice;
use jsonwebtoken::DecodingKey;
use serde::Deserialize;
use serde_json::Value;

use crate::config::Algorithm;
use crate::error::{Error, TokenError};
use crate::jwt::Jwt;
use crate::secret::sha256;

/// Identifies a key by its material, not by its `kid`.
pub(crate) type KeyFingerprint = [u8; 32];

/// A public key that verifies signatures.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    id: Option<String>,
    /// If present, the key is for this algorithm only.
    algorithm: Option<String>,
    kind: Kind,
    decoding: DecodingKey,
    pub(crate) fingerprint: KeyFingerprint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

/// The issuer's key set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys(Vec<Key>);

#[derive(Deserialize)]
struct KeySetDocument {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Keys {
    /// Parses a key set. Skips keys for other uses and keys of unsupported types.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, Error> {
        let document: KeySetDocument = serde_json::from_slice(json)
            .map_err(|error| Error::malformed("the key set", error.to_string()))?;
        let keys: Vec<Key> = document.keys.into_iter().filter_map(Key::parse).collect();
        // Accepting an empty set would drop every known key, and no token could be verified.
        if keys.is_empty() {
            return Err(Error::malformed("the key set", "it has no key for signatures"));
        }
        Ok(Self(keys))
    }

    pub(crate) fn contains(&self, fingerprint: &KeyFingerprint) -> bool {
        self.0.iter().any(|key| key.fingerprint == *fingerprint)
    }

    /// Returns whether any of these keys is not in `other`.
    pub(crate) fn has_key_missing_from(&self, other: &Self) -> bool {
        self.0.iter().any(|key| !other.contains(&key.fingerprint))
    }

    /// Returns the key that a token names. For a token without `kid`, returns the only key that fits its algorithm.
    pub(crate) fn find(&self, jwt: &Jwt<'_>) -> Result<&Key, TokenError> {
        let fits = |key: &&Key| key.fits(jwt.algorithm);
        match jwt.header.kid.as_deref() {
            Some(kid) => {
                let mut named = self.0.iter().filter(|key| key.id.as_deref() == Some(kid)).peekable();
                let is_known = named.peek().is_some();
                named.find(fits).ok_or(if is_known {
                    TokenError::WrongAlgorithm
                } else {
                    TokenError::UnknownKey
                })
            }
            None => {
                let mut fitting = self.0.iter().filter(fits);
                match (fitting.next(), fitting.next()) {
                    (Some(key), None) => Ok(key),
                    _ => Err(TokenError::UnknownKey),
                }
            }
        }
    }
}

impl Key {
    fn parse(json: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(json).ok()?;
        let is_for_signatures = jwk.usage.as_deref().is_none_or(|usage| usage == "sig")
            && jwk.key_ops.as_ref().is_none_or(|uses| uses.iter().any(|usage| usage == "verify"));
        if !is_for_signatures {
            return None;
        }
        let (kind, decoding) = jwk.material()?;
        let material = [&jwk.n, &jwk.e, &jwk.x, &jwk.y].map(|part| part.as_deref().unwrap_or_default());
        let fingerprint = sha256(format!("{kind:?}.{}", material.join(".")).as_bytes());
        Some(Self { id: jwk.kid, algorithm: jwk.alg, kind, decoding, fingerprint })
    }

    /// Returns whether this key can verify signatures of this algorithm.
    pub(crate) fn fits(&self, algorithm: Algorithm) -> bool {
        let kind = match algorithm {
            Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512 => Kind::Rsa,
            Algorithm::Ps256 | Algorithm::Ps384 | Algorithm::Ps512 => Kind::Rsa,
            Algorithm::Es256 => Kind::P256,
            Algorithm::Es384 => Kind::P384,
            Algorithm::EdDsa => Kind::Ed25519,
        };
        // RFC 9864 names EdDSA after its curve.
        let is_named =
            |name: &str| name == algorithm.word() || (algorithm == Algorithm::EdDsa && name == "Ed25519");
        self.kind == kind && self.algorithm.as_deref().is_none_or(is_named)
    }

    pub(crate) const fn decoding(&self) -> &DecodingKey {
        &self.decoding
    }
}

impl Jwk {
    fn material(&self) -> Option<(Kind, DecodingKey)> {
        let (n, e) = (self.n.as_deref(), self.e.as_deref());
        let (x, y) = (self.x.as_deref(), self.y.as_deref());
        match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => Some((Kind::Rsa, DecodingKey::from_rsa_components(n?, e?).ok()?)),
            ("EC", Some("P-256")) => Some((Kind::P256, DecodingKey::from_ec_components(x?, y?).ok()?)),
            ("EC", Some("P-384")) => Some((Kind::P384, DecodingKey::from_ec_components(x?, y?).ok()?)),
            ("OKP", Some("Ed25519")) => Some((Kind::Ed25519, DecodingKey::from_ed_components(x?).ok()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(list: Value) -> Result<Keys, Error> {
        Keys::parse(json!({ "keys": list }).to_string().as_bytes())
    }

    #[test]
    fn keys_for_other_uses_are_skipped() {
        let set = keys(json!([
            { "kty": "RSA", "kid": "encrypts", "use": "enc", "n": "AQAB", "e": "AQAB" },
            { "kty": "RSA", "kid": "signs", "key_ops": ["sign"], "n": "AQAB", "e": "AQAB" },
            { "kty": "oct", "kid": "symmetric", "k": "AQAB" },
            { "kty": "EC", "kid": "strange", "crv": "secp256k1", "x": "AQAB", "y": "AQAB" },
            { "kty": "RSA", "kid": "incomplete", "n": "AQAB" },
            { "kid": "nothing" },
            "nonsense",
            { "kty": "RSA", "kid": "good", "use": "sig", "n": "AQAB", "e": "AQAB" },
        ]));
        let set = set.unwrap();
        let ids: Vec<_> = set.0.iter().map(|key| key.id.as_deref()).collect();
        assert_eq!(ids, [Some("good")]);
        assert!(keys(json!([{ "kty": "oct", "k": "AQAB" }])).is_err(), "no key is left");
        assert!(Keys::parse(b"{}").is_err());
    }

    #[test]
    fn key_fits_its_own_type_and_algorithm_only() {
        let set = keys(json!([
            { "kty": "RSA", "n": "AQAB", "e": "AQAB" },
            { "kty": "RSA", "alg": "PS256", "n": "AQAB", "e": "AQAB" },
            { "kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB" },
            { "kty": "OKP", "crv": "Ed25519", "alg": "Ed25519", "x": "AQAB" },
        ]));
        let set = set.unwrap();
        let fitting = |algorithm| set.0.iter().map(|key| key.fits(algorithm)).collect::<Vec<_>>();
        assert_eq!(fitting(Algorithm::Rs256), [true, false, false, false]);
        assert_eq!(fitting(Algorithm::Ps256), [true, true, false, false]);
        assert_eq!(fitting(Algorithm::Es256), [false, false, true, false]);
        assert_eq!(fitting(Algorithm::Es384), [false; 4]);
        assert_eq!(fitting(Algorithm::EdDsa), [false, false, false, true]);
    }

    #[test]
    fn fingerprint_differs_for_another_key_with_the_same_id() {
        let key = |n: &str| keys(json!([{ "kty": "RSA", "kid": "one", "n": n, "e": "AQAB" }])).unwrap();
        assert!(key("AQAB").contains(&key("AQAB").0[0].fingerprint));
        assert!(!key("AQAB").contains(&key("AQAC").0[0].fingerprint));
    }

    #[test]
    fn no_key_set_makes_the_parser_panic() {
        let samples = [
            r#"{"keys":[{"kty":"RSA","kid":"good","use":"sig","alg":"RS256","n":"AQAB","e":"AQAB"}]}"#,
            r#"{"keys":[{"kty":"EC","crv":"P-256","x":"AQAB","y":"AQAB","key_ops":["verify"]},{"kty":"OKP","crv":"Ed25519","x":"AQAB"}]}"#,
        ];
        testkit::fuzz("key-sets", &samples, |input| Keys::parse(input).is_ok());
    }
}

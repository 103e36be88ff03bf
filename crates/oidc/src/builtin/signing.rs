//! The signing keys of the builtin issuer, and the tokens that they sign.

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Map, Value, json};

use super::{Inner, SCRIPT_TTL, full_name};
use crate::error::Error;
use crate::keys::Keys;
use crate::secret::{random_token, sha256};

/// The current signing key and the retired ones.
pub(super) struct SigningKeys {
    current: SigningKey,
    /// Each with the time at which it stops being published.
    retired: Vec<(SigningKey, Timestamp)>,
}

struct SigningKey {
    id: String,
    encoding: EncodingKey,
    /// The public key as published.
    jwk: Value,
}

/// The user and the client of a token.
pub(super) struct TokenSubject<'a> {
    pub(super) client_id: &'a str,
    pub(super) user: &'a str,
    pub(super) roles: &'a [String],
    pub(super) scope: &'a str,
    pub(super) sid: Option<&'a str>,
}

impl SigningKeys {
    pub(super) fn generate() -> Result<Self, Error> {
        Ok(Self { current: SigningKey::generate()?, retired: Vec::new() })
    }

    pub(super) fn rotate(&mut self, now: Timestamp) -> Result<(), Error> {
        let old = std::mem::replace(&mut self.current, SigningKey::generate()?);
        self.retired.retain(|(_, until)| now < *until);
        self.retired.push((old, now.after(SCRIPT_TTL)));
        Ok(())
    }

    /// Returns the public keys whose tokens may still be valid, as a key set (RFC 7517).
    pub(super) fn key_set(&self, now: Timestamp) -> Value {
        let retired = self.retired.iter().filter(|(_, until)| now < *until).map(|(key, _)| key);
        let keys: Vec<&Value> = std::iter::once(&self.current).chain(retired).map(|key| &key.jwk).collect();
        json!({ "keys": keys })
    }

    /// Returns the same keys parsed, to verify our own tokens.
    pub(super) fn published(&self, now: Timestamp) -> Result<Keys, Error> {
        Keys::parse(self.key_set(now).to_string().as_bytes())
    }

    /// Signs an access token in the form of RFC 9068.
    pub(super) fn sign_access(
        &self,
        issuer: &Inner,
        subject: &TokenSubject<'_>,
        ttl: Duration,
    ) -> Result<String, Error> {
        let config = &issuer.config;
        let mut claims = common_claims(issuer, subject, ttl);
        claims.insert("aud".to_owned(), json!(config.audiences.first()));
        claims.insert("azp".to_owned(), json!(subject.client_id));
        claims.insert("client_id".to_owned(), json!(subject.client_id));
        claims.insert("scope".to_owned(), json!(subject.scope));
        claims.insert("jti".to_owned(), json!(random_token()));
        insert_at_path(&mut claims, &config.roles_claim, json!(subject.roles));
        self.current.sign("at+jwt", &claims)
    }

    pub(super) fn sign_id(
        &self,
        issuer: &Inner,
        subject: &TokenSubject<'_>,
        auth_time: Timestamp,
        nonce: Option<&str>,
    ) -> Result<String, Error> {
        let mut claims = common_claims(issuer, subject, issuer.access_ttl);
        claims.insert("aud".to_owned(), json!(subject.client_id));
        claims.insert("auth_time".to_owned(), json!(auth_time.as_millis() / 1000));
        if let Some(nonce) = nonce {
            claims.insert("nonce".to_owned(), json!(nonce));
        }
        self.current.sign("JWT", &claims)
    }
}

impl SigningKey {
    fn generate() -> Result<Self, Error> {
        const FAILED: Error = Error::Key("it could not be generated");
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).map_err(|_| FAILED)?;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref()).map_err(|_| FAILED)?;
        // An uncompressed point: 4, x, y.
        let point = pair.public_key().as_ref();
        let (x, y) = point.get(1..).and_then(|point| point.split_at_checked(32)).ok_or(FAILED)?;
        let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let id = encoded(&sha256(point)[..12]);
        let jwk = json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": id, "x": encoded(x), "y": encoded(y),
        });
        Ok(Self { id, encoding: EncodingKey::from_ec_der(pkcs8.as_ref()), jwk })
    }

    fn sign(&self, kind: &str, claims: &Map<String, Value>) -> Result<String, Error> {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.id.clone());
        header.typ = Some(kind.to_owned());
        jsonwebtoken::encode(&header, claims, &self.encoding)
            .map_err(|_| Error::Key("it could not sign a token"))
    }
}

/// Returns the claims that all tokens have.
fn common_claims(issuer: &Inner, subject: &TokenSubject<'_>, ttl: Duration) -> Map<String, Value> {
    let now = issuer.clock.now();
    let mut claims = Map::new();
    claims.insert("iss".to_owned(), json!(issuer.issuer.as_str()));
    claims.insert("sub".to_owned(), json!(subject.user));
    claims.insert("iat".to_owned(), json!(now.as_millis() / 1000));
    claims.insert("exp".to_owned(), json!(now.after(ttl).as_millis() / 1000));
    claims.insert("preferred_username".to_owned(), json!(subject.user));
    insert_at_path(&mut claims, &issuer.config.name_claim, json!(full_name(subject.user)));
    if let Some(sid) = subject.sid {
        claims.insert("sid".to_owned(), json!(sid));
    }
    claims
}

/// Inserts a value at a dotted path, where the configuration will look for it.
fn insert_at_path(claims: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.').filter(|_| !path.contains("://")) {
        None => drop(claims.insert(path.to_owned(), value)),
        Some((first, rest)) => {
            let child = claims.entry(first).or_insert_with(|| json!({}));
            if let Some(child) = child.as_object_mut() {
                insert_at_path(child, rest, value);
            }
        }
    }
}

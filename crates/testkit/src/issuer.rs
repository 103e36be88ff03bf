//! A token issuer with keys chosen by the test, behind a network that can be cut. It is for tokens that a real provider would not
//! sign. Tests of sign-in use [`OidcProvider`](crate::OidcProvider).

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::FaultProxy;

/// Generated once, because generation is slow.
static RSA: LazyLock<RsaKeyPair> =
    LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).expect("an RSA key"));

/// Serves a discovery document and keys. A [`Signer`] makes the tokens.
#[derive(Debug)]
pub struct Issuer {
    pub url: String,
    /// The proxy between the issuer and its clients.
    pub network: FaultProxy,
    keys: Arc<Mutex<Vec<Value>>>,
}

impl Issuer {
    pub async fn start(signers: &[&Signer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port can be bound");
        let network = FaultProxy::to(listener.local_addr().expect("a listener has an address")).await;
        let url = format!("http://{}", network.addr());
        let keys: Arc<Mutex<Vec<Value>>> = Arc::default();
        let document = json!({
            "issuer": url,
            "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
            "jwks_uri": format!("{url}/jwks"),
        });
        let published = keys.clone();
        let jwks = move || async move { Json(json!({ "keys": *lock(&published) })) };
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(move || async move { Json(document) }))
            .route("/jwks", get(jwks));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let this = Self { url, network, keys };
        this.publish(signers);
        this
    }

    /// Replaces the published keys.
    pub fn publish(&self, signers: &[&Signer]) {
        *lock(&self.keys) = signers.iter().map(|signer| signer.jwk()).collect();
    }

    /// Returns the claims of a valid access token.
    pub fn claims(&self, user: &str) -> Value {
        let now = now();
        json!({
            "iss": self.url, "sub": user, "aud": ["account", "playhouse"], "azp": "game-client", "iat": now,
            "exp": now + 300, "scope": "openid", "name": user, "realm_access": { "roles": ["player"] },
        })
    }
}

fn lock(keys: &Mutex<Vec<Value>>) -> MutexGuard<'_, Vec<Value>> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the Unix time in seconds, as tokens use it.
#[expect(clippy::disallowed_methods, reason = "an issuer has its own clock")]
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A key pair that signs tokens.
#[derive(Debug)]
pub struct Signer {
    kid: String,
    key: SignerKey,
}

#[derive(Debug)]
enum SignerKey {
    Ec(Box<EcdsaKeyPair>),
    Rsa,
}

impl Signer {
    /// Generates an EC key.
    pub fn ec(kid: &str) -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("an EC key");
        Self { kid: kid.to_owned(), key: SignerKey::Ec(Box::new(key)) }
    }

    /// Uses the RSA key that all RSA signers share.
    pub fn rsa(kid: &str) -> Self {
        Self { kid: kid.to_owned(), key: SignerKey::Rsa }
    }

    /// Returns the token header that matches the key.
    pub fn header(&self) -> Value {
        let alg = match self.key {
            SignerKey::Ec(_) => "ES256",
            SignerKey::Rsa => "RS256",
        };
        json!({ "alg": alg, "typ": "JWT", "kid": self.kid })
    }

    /// Signs a token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(&self.header(), claims)
    }

    /// Signs a token with any header.
    pub fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let (message, random) = (message(header, claims), SystemRandom::new());
        let signature = match &self.key {
            SignerKey::Ec(key) => {
                key.sign(&random, message.as_bytes()).expect("a signature").as_ref().to_vec()
            }
            SignerKey::Rsa => {
                let mut signature = vec![0; RSA.public_modulus_len()];
                RSA.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature)
                    .expect("a signature");
                signature
            }
        };
        format!("{message}.{}", encoded(&signature))
    }

    /// Returns the public key as a JWK.
    pub fn jwk(&self) -> Value {
        match &self.key {
            SignerKey::Ec(key) => {
                let point = key.public_key().as_ref();
                let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
                json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": self.kid, "x": x, "y": y })
            }
            SignerKey::Rsa => {
                let public = RSA.public_key();
                let n = encoded(public.modulus().big_endian_without_leading_zero());
                let e = encoded(public.exponent().big_endian_without_leading_zero());
                json!({ "kty": "RSA", "use": "sig", "kid": self.kid, "n": n, "e": e })
            }
        }
    }
}

/// Signs a token with HMAC, using the RSA public key as the secret: the algorithm confusion attack.
pub fn sign_with_public_key(header: &Value, claims: &Value) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, RSA.public_key().as_ref());
    let message = message(header, claims);
    let signature = hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", encoded(signature.as_ref()))
}

/// Returns the encoded header and payload: the text that is signed.
pub fn message(header: &Value, claims: &Value) -> String {
    format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()))
}

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

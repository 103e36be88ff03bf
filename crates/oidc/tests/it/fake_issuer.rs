//! A fake issuer: tests set its keys, its responses and its failures.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use base::Clock;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, StatusCode};
use oidc::{Config, Provider};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use url::Url;

use crate::{NOW, config, provider};

/// Generated once, because it is slow.
static RSA: LazyLock<RsaKeyPair> = LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());

/// The issuer. Cheap to clone; clones share state.
#[derive(Clone)]
pub(crate) struct FakeIssuer {
    pub(crate) issuer: Url,
    state: Arc<FakeIssuerState>,
}

#[derive(Default)]
struct FakeIssuerState {
    keys: Mutex<Vec<Value>>,
    /// Overrides of the discovery document; null removes a field.
    document: Mutex<Map<String, Value>>,
    /// The response to every request while the issuer is broken.
    broken: Mutex<Option<(u16, String)>>,
    /// Blocks requests for keys.
    gate: Mutex<Option<Arc<Semaphore>>>,
    key_requests: AtomicUsize,
    /// How often a redirect was followed.
    followers: AtomicUsize,
    token_response: Mutex<(u16, Value)>,
    forms: Mutex<Vec<(HeaderMap, HashMap<String, String>)>>,
}

impl FakeIssuer {
    pub(crate) async fn start(signers: &[&Signer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}/realms/games", listener.local_addr().unwrap());
        let this = Self { issuer: Url::parse(&issuer).unwrap(), state: Arc::default() };
        this.publish(signers);
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/jwks", get(jwks))
            .route("/token", post(form))
            .route("/revoke", post(form))
            .with_state(this.clone());
        let elsewhere = axum::routing::any(followed).with_state(this.clone());
        let app = Router::new().nest("/realms/games", routes).route("/elsewhere", elsewhere);
        tokio::spawn(async move { axum::serve(listener, app).await });
        this
    }

    pub(crate) fn publish(&self, signers: &[&Signer]) {
        *self.state.keys.lock().unwrap() = signers.iter().map(|signer| signer.jwk()).collect();
    }

    pub(crate) fn set_metadata(&self, key: &str, value: Value) {
        self.state.document.lock().unwrap().insert(key.to_owned(), value);
    }

    pub(crate) fn break_with(&self, status: u16, body: &str) {
        *self.state.broken.lock().unwrap() = Some((status, body.to_owned()));
    }

    pub(crate) fn repair(&self) {
        *self.state.broken.lock().unwrap() = None;
    }

    pub(crate) fn hold_keys(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.state.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    pub(crate) fn set_token_response(&self, status: u16, body: Value) {
        *self.state.token_response.lock().unwrap() = (status, body);
    }

    /// Returns how often the keys were fetched.
    pub(crate) fn key_requests(&self) -> usize {
        self.state.key_requests.load(Ordering::SeqCst)
    }

    /// Returns how often a redirect was followed.
    pub(crate) fn followers(&self) -> usize {
        self.state.followers.load(Ordering::SeqCst)
    }

    /// Returns the last form that was received, with its headers.
    pub(crate) fn last_form(&self) -> Option<(HeaderMap, HashMap<String, String>)> {
        self.state.forms.lock().unwrap().last().cloned()
    }

    /// Returns the claims of a valid access token.
    pub(crate) fn claims(&self) -> Value {
        let now = NOW.as_millis() / 1000;
        json!({
            "iss": self.issuer.as_str(),
            "sub": "f3a1",
            "aud": ["account", "playhouse"],
            "scope": "openid", "azp": "game-client",
            "sid": "session-1",
            "iat": now,
            "exp": now + 300,
            "name": "Ada Lovelace",
            "realm_access": { "roles": ["player"] },
        })
    }
}

async fn discovery(State(fake): State<FakeIssuer>) -> Response {
    if let Some(response) = fake.broken() {
        return response;
    }
    let issuer = fake.issuer.as_str();
    let mut document = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize?tenant=games"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/jwks"),
        "revocation_endpoint": format!("{issuer}/revoke"),
        "end_session_endpoint": format!("{issuer}/logout"),
    });
    for (key, value) in fake.state.document.lock().unwrap().iter() {
        document[key] = value.clone();
    }
    Json(document).into_response()
}

async fn followed(State(fake): State<FakeIssuer>) {
    fake.state.followers.fetch_add(1, Ordering::SeqCst);
}

async fn jwks(State(fake): State<FakeIssuer>) -> Response {
    fake.state.key_requests.fetch_add(1, Ordering::SeqCst);
    let gate = fake.state.gate.lock().unwrap().clone();
    if let Some(gate) = gate {
        gate.acquire().await.unwrap().forget();
    }
    let keys = fake.state.keys.lock().unwrap().clone();
    fake.broken().unwrap_or_else(|| Json(json!({ "keys": keys })).into_response())
}

async fn form(
    State(fake): State<FakeIssuer>,
    headers: HeaderMap,
    Form(fields): Form<HashMap<String, String>>,
) -> Response {
    fake.state.forms.lock().unwrap().push((headers, fields));
    let (status, body) = fake.state.token_response.lock().unwrap().clone();
    fake.broken().unwrap_or_else(|| (StatusCode::from_u16(status).unwrap(), Json(body)).into_response())
}

impl FakeIssuer {
    fn broken(&self) -> Option<Response> {
        let (status, body) = self.state.broken.lock().unwrap().clone()?;
        let status = StatusCode::from_u16(status).unwrap();
        Some((status, [("location", "/elsewhere")], body).into_response())
    }
}

/// Signs tokens with a key.
pub(crate) struct Signer {
    kid: Option<&'static str>,
    key: SignerKey,
}

enum SignerKey {
    Ec(Box<EcdsaKeyPair>),
    Rsa,
}

impl Signer {
    pub(crate) fn ec(kid: &'static str) -> Self {
        Self { kid: Some(kid), ..Self::without_kid() }
    }

    /// Has no key id, neither in tokens nor in the key set.
    pub(crate) fn without_kid() -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { kid: None, key: SignerKey::Ec(Box::new(key)) }
    }

    pub(crate) fn rsa(kid: &'static str) -> Self {
        Self { kid: Some(kid), key: SignerKey::Rsa }
    }

    pub(crate) fn header(&self) -> Value {
        let alg = match self.key {
            SignerKey::Ec(_) => "ES256",
            SignerKey::Rsa => "RS256",
        };
        let mut header = json!({ "alg": alg, "typ": "JWT" });
        if let Some(kid) = self.kid {
            header["kid"] = kid.into();
        }
        header
    }

    /// Signs claims with the default header.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_with(&self.header(), claims)
    }

    pub(crate) fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = match &self.key {
            SignerKey::Ec(key) => {
                key.sign(&SystemRandom::new(), message.as_bytes()).unwrap().as_ref().to_vec()
            }
            SignerKey::Rsa => {
                let mut signature = vec![0; RSA.public_modulus_len()];
                let random = SystemRandom::new();
                RSA.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    pub(crate) fn jwk(&self) -> Value {
        let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match &self.key {
            SignerKey::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..]) })
            }
            SignerKey::Rsa => {
                let public = RSA.public_key();
                let (n, e) = (public.modulus(), public.exponent());
                json!({
                    "kty": "RSA",
                    "n": encoded(n.big_endian_without_leading_zero()),
                    "e": encoded(e.big_endian_without_leading_zero()),
                })
            }
        };
        jwk["use"] = "sig".into();
        if let Some(kid) = self.kid {
            jwk["kid"] = kid.into();
        }
        jwk
    }
}

/// Returns the public RSA key in DER.
pub(crate) fn rsa_public_der() -> Vec<u8> {
    RSA.public_key().as_ref().to_vec()
}

/// Returns the encoded header and payload, the bytes to sign.
pub(crate) fn message(header: &Value, claims: &Value) -> String {
    let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}", encoded(header), encoded(claims))
}

/// A fake issuer with one key, a provider for it, and the clock of both.
pub(crate) struct Fixture {
    pub(crate) fake: FakeIssuer,
    pub(crate) signer: Signer,
    pub(crate) provider: Provider,
    pub(crate) clock: Clock,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        Self::with(&config()).await
    }

    pub(crate) async fn with(config: &Config) -> Self {
        let signer = Signer::ec("one");
        let fake = FakeIssuer::start(&[&signer]).await;
        let clock = Clock::manual(NOW);
        let provider = provider(config, &fake.issuer, &clock);
        Self { fake, signer, provider, clock }
    }

    /// Returns a valid access token with some changes. A null removes a claim.
    pub(crate) fn token(&self, changes: &Value) -> String {
        self.signer.sign(&changed(self.fake.claims(), changes))
    }
}

pub(crate) fn changed(mut claims: Value, changes: &Value) -> Value {
    for (claim, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
            value => claims[claim] = value.clone(),
        }
    }
    claims
}

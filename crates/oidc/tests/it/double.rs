//! A third party: an issuer whose keys, answers and health are what a test wants them to be.

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

/// Made once, because it takes a while.
static RSA: LazyLock<RsaKeyPair> = LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());

/// The issuer. Clones are the same.
#[derive(Clone)]
pub(crate) struct Double {
    pub(crate) issuer: Url,
    state: Arc<DoubleState>,
}

#[derive(Default)]
struct DoubleState {
    keys: Mutex<Vec<Value>>,
    /// Overrides of the discovery document; null takes an entry out.
    document: Mutex<Map<String, Value>>,
    /// Answers to everything, instead of the right ones.
    broken: Mutex<Option<(u16, String)>>,
    /// Where requests for keys wait.
    gate: Mutex<Option<Arc<Semaphore>>>,
    key_requests: AtomicUsize,
    /// How often somebody followed us to where we sent them.
    followers: AtomicUsize,
    token_answer: Mutex<(u16, Value)>,
    forms: Mutex<Vec<(HeaderMap, HashMap<String, String>)>>,
}

impl Double {
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

    pub(crate) fn say(&self, key: &str, value: Value) {
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

    pub(crate) fn answer_token(&self, status: u16, answer: Value) {
        *self.state.token_answer.lock().unwrap() = (status, answer);
    }

    /// How often keys were asked for.
    pub(crate) fn key_requests(&self) -> usize {
        self.state.key_requests.load(Ordering::SeqCst)
    }

    /// How often a redirect was followed.
    pub(crate) fn followers(&self) -> usize {
        self.state.followers.load(Ordering::SeqCst)
    }

    /// The last form that was sent, with its headers.
    pub(crate) fn last_form(&self) -> Option<(HeaderMap, HashMap<String, String>)> {
        self.state.forms.lock().unwrap().last().cloned()
    }

    /// The claims of a good access token.
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

async fn discovery(State(double): State<Double>) -> Response {
    if let Some(answer) = double.broken() {
        return answer;
    }
    let issuer = double.issuer.as_str();
    let mut document = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize?tenant=games"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/jwks"),
        "revocation_endpoint": format!("{issuer}/revoke"),
        "end_session_endpoint": format!("{issuer}/logout"),
    });
    for (key, value) in double.state.document.lock().unwrap().iter() {
        document[key] = value.clone();
    }
    Json(document).into_response()
}

async fn followed(State(double): State<Double>) {
    double.state.followers.fetch_add(1, Ordering::SeqCst);
}

async fn jwks(State(double): State<Double>) -> Response {
    double.state.key_requests.fetch_add(1, Ordering::SeqCst);
    let gate = double.state.gate.lock().unwrap().clone();
    if let Some(gate) = gate {
        gate.acquire().await.unwrap().forget();
    }
    let keys = double.state.keys.lock().unwrap().clone();
    double.broken().unwrap_or_else(|| Json(json!({ "keys": keys })).into_response())
}

async fn form(
    State(double): State<Double>,
    headers: HeaderMap,
    Form(fields): Form<HashMap<String, String>>,
) -> Response {
    double.state.forms.lock().unwrap().push((headers, fields));
    let (status, answer) = double.state.token_answer.lock().unwrap().clone();
    double.broken().unwrap_or_else(|| (StatusCode::from_u16(status).unwrap(), Json(answer)).into_response())
}

impl Double {
    fn broken(&self) -> Option<Response> {
        let (status, body) = self.state.broken.lock().unwrap().clone()?;
        let status = StatusCode::from_u16(status).unwrap();
        Some((status, [("location", "/elsewhere")], body).into_response())
    }
}

/// Somebody with a key.
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
        Self { kid: Some(kid), ..Self::nameless() }
    }

    /// Names its key neither in tokens nor where it is published.
    pub(crate) fn nameless() -> Self {
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

    /// A token in the usual form.
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

/// The public RSA key as it is passed around in files.
pub(crate) fn rsa_public_der() -> Vec<u8> {
    RSA.public_key().as_ref().to_vec()
}

/// Header and payload.
pub(crate) fn message(header: &Value, claims: &Value) -> String {
    let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    format!("{}.{}", encoded(header), encoded(claims))
}

/// An issuer with one key, a provider for it, and the clock of both.
pub(crate) struct World {
    pub(crate) double: Double,
    pub(crate) signer: Signer,
    pub(crate) provider: Provider,
    pub(crate) clock: Clock,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(&config()).await
    }

    pub(crate) async fn with(config: &Config) -> Self {
        let signer = Signer::ec("one");
        let double = Double::start(&[&signer]).await;
        let clock = Clock::manual(NOW);
        let provider = provider(config, &double.issuer, &clock);
        Self { double, signer, provider, clock }
    }

    /// A good access token, but for what is changed. A null takes a claim out.
    pub(crate) fn token(&self, changes: &Value) -> String {
        self.signer.sign(&changed(self.double.claims(), changes))
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

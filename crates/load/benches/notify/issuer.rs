//! An issuer of tokens, as much of one as it takes to let players in.

use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) struct Issuer {
    pub(crate) url: String,
    key: Arc<EcdsaKeyPair>,
}

impl Issuer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let key = Arc::new(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap());
        let document = json!({
            "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"), "jwks_uri": format!("{url}/jwks"),
        });
        let point = key.public_key().as_ref();
        let keys = json!({ "keys": [{
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "bench",
            "x": encoded(&point[1..33]), "y": encoded(&point[33..]),
        }] });
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(async move || Json(document)))
            .route("/jwks", get(async move || Json(keys)));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, key }
    }

    /// An access token of a player.
    pub(crate) fn token(&self, player: &str) -> String {
        #[expect(clippy::disallowed_methods, reason = "an issuer has a clock of its own")]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let header = json!({ "alg": "ES256", "typ": "JWT", "kid": "bench" });
        let claims = json!({
            "iss": self.url, "sub": player, "aud": ["account", "playhouse"], "azp": "game-client", "scope": "openid", "iat": now, "exp": now + 3_600, "name": player,
            "realm_access": { "roles": ["player"] },
        });
        let part = |value: &Value| encoded(value.to_string().as_bytes());
        let message = format!("{}.{}", part(&header), part(&claims));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encoded(signature.as_ref()))
    }
}

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

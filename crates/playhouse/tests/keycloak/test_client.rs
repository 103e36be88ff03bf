//! An OpenID Connect client in place of the gateway, which exposes everything that Keycloak sends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::{get, post};

use super::*;

/// The example of RFC 7636.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// Serves the redirect URI, and records back-channel logouts.
pub(super) struct TestClient {
    pub(super) url: String,
    pub(super) logouts: Arc<Mutex<Vec<String>>>,
}

impl TestClient {
    pub(super) async fn serve() -> Self {
        let logouts = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&logouts);
        let record = move |body: String| async move { log.lock().unwrap().push(body) };
        let router = Router::new()
            .route("/", get(async || "signed out"))
            .route("/login/callback", get(async || "signed in"))
            .route("/logout/backchannel", post(record));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, logouts }
    }

    fn callback(&self) -> String {
        format!("{}/login/callback", self.url)
    }
}

pub(super) fn sign_in_url(keycloak: &Keycloak, client: &TestClient, pkce: bool) -> Url {
    let mut url = Url::parse(&keycloak.authorize_url()).unwrap();
    url.query_pairs_mut()
        .append_pair("client_id", "playhouse")
        .append_pair("response_type", "code")
        .append_pair("scope", "openid profile")
        .append_pair("redirect_uri", &client.callback())
        .append_pair("state", "s1")
        .append_pair("nonce", "n1");
    if pkce {
        url.query_pairs_mut()
            .append_pair("code_challenge", CHALLENGE)
            .append_pair("code_challenge_method", "S256");
    }
    url
}

/// Waits for the redirect back to the client. Returns its parameters.
pub(super) async fn wait_for_callback(browser: &Browser, client: &TestClient) -> HashMap<String, String> {
    let callback = client.callback();
    let url = browser.wait_for_url(|url| url.starts_with(&callback), DEADLINE).await;
    Url::parse(&url).unwrap().query_pairs().into_owned().collect()
}

pub(super) async fn sign_in(
    browser: &Browser,
    keycloak: &Keycloak,
    client: &TestClient,
    name: &str,
    password: &str,
) -> Value {
    browser.delete_all_cookies().await;
    browser.goto(sign_in_url(keycloak, client, true)).await;
    submit_sign_in(browser, name, password).await;
    let callback = wait_for_callback(browser, client).await;
    assert_eq!((callback["state"].as_str(), callback["iss"].as_str()), ("s1", keycloak.issuer().as_str()));
    let redirect_uri = client.callback();
    let form = [
        ("grant_type", "authorization_code"),
        ("code", &callback["code"]),
        ("redirect_uri", &redirect_uri),
        ("code_verifier", VERIFIER),
    ];
    let (status, tokens) = token(keycloak, credentials(keycloak), &form).await;
    assert_eq!(status, 200, "{tokens}");
    tokens
}

/// Returns the id and the secret of the gateway's client.
fn credentials(keycloak: &Keycloak) -> (&str, &str) {
    ("playhouse", &keycloak.settings().client_secret)
}

pub(super) async fn refresh(keycloak: &Keycloak, tokens: &Value) -> (StatusCode, Value) {
    let form = [("grant_type", "refresh_token"), ("refresh_token", text(&tokens["refresh_token"]))];
    token(keycloak, credentials(keycloak), &form).await
}

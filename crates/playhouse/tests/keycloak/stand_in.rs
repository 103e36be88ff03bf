//! A client in the gateway's place, which shows all that Keycloak says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::{get, post};

use super::*;

/// The example of RFC 7636.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// Where people come back to, and where Keycloak tells about the end of sessions.
pub(super) struct Client {
    pub(super) url: String,
    pub(super) told: Arc<Mutex<Vec<String>>>,
}

impl Client {
    pub(super) async fn serve() -> Self {
        let told = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&told);
        let hear = move |body: String| async move { log.lock().unwrap().push(body) };
        let router = Router::new()
            .route("/", get(async || "signed out"))
            .route("/login/callback", get(async || "signed in"))
            .route("/logout/backchannel", post(hear));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, told }
    }

    fn callback(&self) -> String {
        format!("{}/login/callback", self.url)
    }
}

pub(super) fn sign_in_url(keycloak: &Keycloak, client: &Client, pkce: bool) -> Url {
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

pub(super) async fn came_back(browser: &Browser, client: &Client) -> HashMap<String, String> {
    let callback = client.callback();
    let url = browser.wait_for_url(|url| url.starts_with(&callback), DEADLINE).await;
    Url::parse(&url).unwrap().query_pairs().into_owned().collect()
}

pub(super) async fn sign_in(
    browser: &Browser,
    keycloak: &Keycloak,
    client: &Client,
    name: &str,
    password: &str,
) -> Value {
    browser.delete_all_cookies().await;
    browser.goto(sign_in_url(keycloak, client, true)).await;
    enter(browser, name, password).await;
    let back = came_back(browser, client).await;
    assert_eq!((back["state"].as_str(), back["iss"].as_str()), ("s1", keycloak.issuer().as_str()));
    let callback = client.callback();
    let form = [
        ("grant_type", "authorization_code"),
        ("code", &back["code"]),
        ("redirect_uri", &callback),
        ("code_verifier", VERIFIER),
    ];
    let (status, tokens) = token(keycloak, gateway(keycloak), &form).await;
    assert_eq!(status, 200, "{tokens}");
    tokens
}

fn gateway(keycloak: &Keycloak) -> (&str, &str) {
    ("playhouse", &keycloak.settings().client_secret)
}

pub(super) async fn refresh(keycloak: &Keycloak, tokens: &Value) -> (StatusCode, Value) {
    let form = [("grant_type", "refresh_token"), ("refresh_token", text(&tokens["refresh_token"]))];
    token(keycloak, gateway(keycloak), &form).await
}

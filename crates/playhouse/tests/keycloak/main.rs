//! Keycloak, the reference for identity providers, with the realm of `deploy/keycloak`.
//!
//! Run by `cargo xtask test-keycloak`.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too, which clippy cannot see")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use reqwest::header::CONTENT_TYPE;
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};
use testkit::{Browser, Keycloak, RealmSettings, eventually, need};

const DEADLINE: Duration = Duration::from_secs(60);
/// The example of RFC 7636.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// Where people come back to, and where Keycloak tells about the end of sessions.
struct Client {
    url: String,
    told: Arc<Mutex<Vec<String>>>,
}

impl Client {
    async fn serve() -> Self {
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

fn sign_in_url(keycloak: &Keycloak, client: &Client, pkce: bool) -> Url {
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

async fn came_back(browser: &Browser, client: &Client) -> HashMap<String, String> {
    let callback = client.callback();
    let url = browser.wait_for_url(|url| url.starts_with(&callback), DEADLINE).await;
    Url::parse(&url).unwrap().query_pairs().into_owned().collect()
}

async fn sign_in(
    browser: &Browser,
    keycloak: &Keycloak,
    client: &Client,
    name: &str,
    password: &str,
) -> Value {
    browser.delete_all_cookies().await;
    browser.goto(sign_in_url(keycloak, client, true)).await;
    browser.fill("#username", name).await;
    browser.fill("#password", password).await;
    browser.click("#kc-login").await;
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

async fn token(keycloak: &Keycloak, who: (&str, &str), form: &[(&str, &str)]) -> (StatusCode, Value) {
    let body = Url::parse_with_params("http://form", form).unwrap().query().unwrap().to_owned();
    let request = reqwest::Client::new().post(keycloak.token_url()).basic_auth(who.0, Some(who.1));
    let answer =
        request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

async fn refresh(keycloak: &Keycloak, tokens: &Value) -> (StatusCode, Value) {
    let form = [("grant_type", "refresh_token"), ("refresh_token", text(&tokens["refresh_token"]))];
    token(keycloak, gateway(keycloak), &form).await
}

async fn service_token(keycloak: &Keycloak) -> Value {
    let who = ("shop", keycloak.settings().service_secret.as_str());
    let (status, tokens) = token(keycloak, who, &[("grant_type", "client_credentials")]).await;
    assert_eq!(status, 200, "{tokens}");
    tokens["access_token"].clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// A part of a JWT: 0 is the header, 1 the claims.
fn part(token: &Value, part: usize) -> Value {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text(token).split('.').nth(part).unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn has_role(claims: &Value, role: &str) -> bool {
    claims["realm_access"]["roles"].as_array().is_some_and(|roles| roles.contains(&json!(role)))
}

/// One test, because a start of Keycloak is dear.
#[tokio::test]
async fn the_realm_is_what_the_gateway_needs() {
    let client = Client::serve().await;
    let mut keycloak = need!(Keycloak::start(RealmSettings::at("http://127.0.0.1:1")).await);
    let browser = need!(Browser::start().await);
    keycloak.set_gateway_url(&client.url).await;

    // Discovery.
    let url = format!("{}/.well-known/openid-configuration", keycloak.issuer());
    let discovery: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
    assert_eq!(discovery["issuer"], keycloak.issuer());
    assert_eq!(discovery["backchannel_logout_session_supported"], true);

    // People, with PKCE alone.
    browser.goto(sign_in_url(&keycloak, &client, false)).await;
    assert_eq!(came_back(&browser, &client).await["error"], "invalid_request");
    let tokens = sign_in(&browser, &keycloak, &client, "root-eve", Keycloak::PASSWORD).await;
    let (access, identity) = (part(&tokens["access_token"], 1), part(&tokens["id_token"], 1));
    assert_eq!((&access["aud"], &access["iss"]), (&json!("playhouse"), &json!(keycloak.issuer())));
    assert_eq!((&identity["aud"], &identity["nonce"]), (&json!("playhouse"), &json!("n1")));
    assert_eq!((&identity["name"], &access["name"]), (&json!("Eve Example"), &json!("Eve Example")));
    assert!(has_role(&access, "playhouse-operator") && has_role(&identity, "playhouse-operator"));
    assert_eq!(access["sid"], identity["sid"]);

    // Refresh tokens rotate: one that comes a second time ends the session.
    let (status, fresh) = refresh(&keycloak, &tokens).await;
    assert_eq!(status, 200, "{fresh}");
    assert_eq!(refresh(&keycloak, &tokens).await.1["error"], "invalid_grant");

    // Services.
    let claims = part(&service_token(&keycloak).await, 1);
    assert_eq!(claims["aud"], "playhouse");
    for role in ["playhouse-service", "playhouse-may-read", "playhouse-may-entitlements"] {
        assert!(has_role(&claims, role), "{claims}");
    }
    assert!(!has_role(&claims, "playhouse-may-operator"));

    // New users, and the end of their sessions from afar.
    let carol = keycloak.create_user("carol", "a password", &["playhouse-operator"]).await;
    let tokens = sign_in(&browser, &keycloak, &client, "carol", "a password").await;
    let (access, identity) = (part(&tokens["access_token"], 1), part(&tokens["id_token"], 1));
    assert_eq!(access["sub"], carol);
    assert!(has_role(&access, "playhouse-operator"));
    assert_eq!(keycloak.sessions_of("carol").await, 1);
    client.told.lock().unwrap().clear();
    keycloak.log_out("carol").await;
    let told =
        eventually("a back-channel logout", DEADLINE, || async { client.told.lock().unwrap().pop() }).await;
    let logout = json!(told.strip_prefix("logout_token=").unwrap());
    assert_eq!(part(&logout, 1)["sid"], identity["sid"]);
    assert_eq!(keycloak.sessions_of("carol").await, 0);

    // Keys, which a restart keeps.
    let signer = async |keycloak: &Keycloak| part(&service_token(keycloak).await, 0)["kid"].clone();
    let old = signer(&keycloak).await;
    keycloak.rotate_keys().await;
    let new = signer(&keycloak).await;
    assert_ne!(new, old);
    assert_eq!(published(&discovery, &[&new, &old]).await, [true, true]);
    keycloak.retire_keys().await;
    assert_eq!(published(&discovery, &[&new, &old]).await, [true, false]);
    keycloak.kill().await.unwrap();
    keycloak.start_again().await.unwrap();
    assert_eq!(signer(&keycloak).await, new);
}

async fn published(discovery: &Value, wanted: &[&Value]) -> Vec<bool> {
    let keys: Value = reqwest::get(text(&discovery["jwks_uri"])).await.unwrap().json().await.unwrap();
    let keys = keys["keys"].as_array().unwrap();
    wanted.iter().map(|wanted| keys.iter().any(|key| key["kid"] == **wanted)).collect()
}

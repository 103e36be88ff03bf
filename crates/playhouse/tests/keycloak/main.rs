//! Keycloak, the reference for identity providers, with the realm of `deploy/keycloak`: what the realm promises, and the gateway
//! in front of it, with a real browser.
//!
//! Run by `cargo xtask test-keycloak`.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too, which clippy cannot see")]

mod gateway;
mod realm;
mod stand_in;

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use reqwest::header::CONTENT_TYPE;
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};
use testkit::{Browser, Keycloak, RealmSettings, need};

const DEADLINE: Duration = Duration::from_secs(60);

/// One test, because a start of Keycloak is dear.
#[tokio::test(flavor = "multi_thread")]
async fn keycloak_is_what_the_gateway_needs_and_the_gateway_works_with_it() {
    let mut keycloak = need!(Keycloak::start(RealmSettings::at("http://127.0.0.1:1")).await);
    let browser = need!(Browser::start().await);
    realm::is_what_the_gateway_needs(&keycloak, &browser).await;
    gateway::works(&mut keycloak, &browser).await;
}

/// Fills in the form of Keycloak.
async fn enter(browser: &Browser, name: &str, password: &str) {
    browser.fill("#username", name).await;
    browser.fill("#password", password).await;
    browser.click("#kc-login").await;
}

async fn token(keycloak: &Keycloak, who: (&str, &str), form: &[(&str, &str)]) -> (StatusCode, Value) {
    let body = Url::parse_with_params("http://form", form).unwrap().query().unwrap().to_owned();
    let request = reqwest::Client::new().post(keycloak.token_url()).basic_auth(who.0, Some(who.1));
    let answer =
        request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
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

//! Keycloak with the realm of `deploy/keycloak`: the realm meets the gateway's requirements, and the gateway works with it in a real
//! browser.
//!
//! Run by `cargo xtask test-keycloak`.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too, which clippy cannot see")]

mod gateway;
mod realm;
mod test_client;

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use reqwest::header::CONTENT_TYPE;
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};
use testkit::{Browser, Keycloak, RealmSettings, need};

const DEADLINE: Duration = Duration::from_secs(60);

/// One test, because starting Keycloak takes long.
#[tokio::test(flavor = "multi_thread")]
async fn realm_meets_the_requirements_and_the_gateway_works_with_it() {
    let mut keycloak = need!(Keycloak::start(RealmSettings::at("http://127.0.0.1:1")).await);
    let browser = need!(Browser::start().await);
    realm::meets_the_requirements(&keycloak, &browser).await;
    gateway::works(&mut keycloak, &browser).await;
}

/// Submits the sign-in form of Keycloak.
async fn submit_sign_in(browser: &Browser, name: &str, password: &str) {
    browser.fill("#username", name).await;
    browser.fill("#password", password).await;
    browser.click("#kc-login").await;
}

async fn token(keycloak: &Keycloak, client: (&str, &str), form: &[(&str, &str)]) -> (StatusCode, Value) {
    let body = Url::parse_with_params("http://form", form).unwrap().query().unwrap().to_owned();
    let request = reqwest::Client::new().post(keycloak.token_url()).basic_auth(client.0, Some(client.1));
    let response =
        request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body).send().await.unwrap();
    (response.status(), response.json().await.unwrap())
}

async fn service_token(keycloak: &Keycloak) -> Value {
    let client = ("shop", keycloak.settings().service_secret.as_str());
    let (status, tokens) = token(keycloak, client, &[("grant_type", "client_credentials")]).await;
    assert_eq!(status, 200, "{tokens}");
    tokens["access_token"].clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}"))
}

/// Decodes a part of a JWT: 0 is the header, 1 the claims.
fn part(token: &Value, part: usize) -> Value {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text(token).split('.').nth(part).unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn has_role(claims: &Value, role: &str) -> bool {
    claims["realm_access"]["roles"].as_array().is_some_and(|roles| roles.contains(&json!(role)))
}

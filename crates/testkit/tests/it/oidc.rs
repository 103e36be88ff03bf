//! The identity provider of the test kit.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use reqwest::StatusCode;
use serde_json::{Value, json};
use testkit::{Browser, ClientUris, OidcClients, OidcProvider, eventually, need};
use url::Url;

use crate::DEADLINE;
use crate::pages::Pages;

/// The example from RFC 7636.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
const OK: &str = "200 OK\r\ncontent-type: text/html\r\n\r\n<link rel=icon href='data:,'><h1>back</h1>";

/// Serves the pages of a client of the provider.
async fn client(provider: &OidcProvider) -> Pages {
    let pages = Pages::serve(&[("/login/callback", OK), ("/", OK), ("/logout/backchannel", OK)]).await;
    provider.set_uris(&ClientUris::at(&pages.url(""))).await;
    pages
}

fn sign_in_url(provider: &OidcProvider, client: &Pages) -> String {
    let mut url = provider.url("/auth");
    url.query_pairs_mut()
        .append_pair("client_id", "playhouse")
        .append_pair("response_type", "code")
        .append_pair("scope", "openid profile")
        .append_pair("redirect_uri", &client.url("/login/callback"))
        .append_pair("state", "s1")
        .append_pair("nonce", "n1")
        .append_pair("code_challenge", CHALLENGE)
        .append_pair("code_challenge_method", "S256");
    url.into()
}

/// Signs in through the browser and returns the parameters of the callback.
async fn sign_in(
    browser: &Browser,
    provider: &OidcProvider,
    client: &Pages,
    name: &str,
) -> HashMap<String, String> {
    browser.goto(sign_in_url(provider, client)).await;
    browser.fill("[name=login]", name).await;
    browser.click("[name=go]").await;
    callback_parameters(browser, client).await
}

async fn callback_parameters(browser: &Browser, client: &Pages) -> HashMap<String, String> {
    let callback = client.url("/login/callback");
    let url = browser.wait_for_url(|url| url.starts_with(&callback), DEADLINE).await;
    Url::parse(&url).unwrap().query_pairs().into_owned().collect()
}

async fn token(provider: &OidcProvider, client: (&str, &str), form: &[(&str, &str)]) -> (StatusCode, Value) {
    let body = Url::parse_with_params("http://form", form).unwrap().query().unwrap().to_owned();
    let request = reqwest::Client::new()
        .post(provider.url("/token"))
        .basic_auth(client.0, Some(client.1))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body);
    let answer = request.send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

async fn redeem(provider: &OidcProvider, client: &Pages, code: &str) -> Value {
    let uri = client.url("/login/callback");
    let form = [
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", &uri),
        ("code_verifier", VERIFIER),
    ];
    let (status, tokens) = token(provider, ("playhouse", "secret-of-the-client"), &form).await;
    assert_eq!(status, 200, "{tokens}");
    tokens
}

async fn refresh(provider: &OidcProvider, tokens: &Value) -> (StatusCode, Value) {
    let form = [("grant_type", "refresh_token"), ("refresh_token", text(&tokens["refresh_token"]))];
    token(provider, ("playhouse", "secret-of-the-client"), &form).await
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Decodes a part of a JWT: 0 is the header, 1 the claims.
fn part(token: &Value, part: usize) -> Value {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text(token).split('.').nth(part).unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

async fn published(provider: &OidcProvider) -> Vec<String> {
    let keys: Value = reqwest::get(provider.url("/jwks")).await.unwrap().json().await.unwrap();
    keys["keys"].as_array().unwrap().iter().map(|key| text(&key["kid"]).to_owned()).collect()
}

#[tokio::test]
async fn user_signs_in_with_code_and_pkce() {
    let provider = need!(OidcProvider::start(OidcClients::default()).await);
    let browser = need!(Browser::start().await);
    let client = client(&provider).await;
    let back = sign_in(&browser, &provider, &client, "root-ada").await;
    assert_eq!((back["state"].as_str(), back["iss"].as_str()), ("s1", provider.issuer().as_str()));
    let tokens = redeem(&provider, &client, &back["code"]).await;

    let (access, identity) = (part(&tokens["access_token"], 1), part(&tokens["id_token"], 1));
    assert_eq!(part(&tokens["access_token"], 0)["alg"], "RS256");
    assert_eq!((&access["aud"], &access["sub"]), (&json!("playhouse"), &json!("root-ada")));
    assert_eq!((&identity["aud"], &identity["nonce"]), (&json!("playhouse"), &json!("n1")));
    assert!(identity["sid"].is_string(), "{identity}");
    for claims in [&access, &identity] {
        assert_eq!(claims["iss"], provider.issuer());
        assert_eq!(claims["realm_access"]["roles"], json!(["playhouse-operator"]));
        assert_eq!(claims["name"], "Player root-ada");
    }
    assert_eq!(provider.signed_in_users().await, ["root-ada"]);
    assert_eq!(browser.console_errors().await, Vec::<String>::new());

    // The provider has a session of the user now, and does not ask again.
    browser.goto(sign_in_url(&provider, &client)).await;
    let back = callback_parameters(&browser, &client).await;
    assert_eq!(part(&redeem(&provider, &client, &back["code"]).await["id_token"], 1)["sid"], identity["sid"]);
}

#[tokio::test]
async fn user_can_cancel_the_sign_in() {
    let provider = need!(OidcProvider::start(OidcClients::default()).await);
    let browser = need!(Browser::start().await);
    let client = client(&provider).await;
    browser.goto(sign_in_url(&provider, &client)).await;
    browser.click("[name=cancel]").await;
    assert_eq!(callback_parameters(&browser, &client).await["error"], "access_denied");
}

#[tokio::test]
async fn refresh_tokens_rotate_and_are_counted() {
    let clients = OidcClients { access_token_life: Duration::from_secs(7), ..OidcClients::default() };
    let mut provider = need!(OidcProvider::start(clients).await);
    let browser = need!(Browser::start().await);
    let client = client(&provider).await;
    let code = sign_in(&browser, &provider, &client, "bob").await["code"].clone();
    let first = redeem(&provider, &client, &code).await;
    let claims = part(&first["access_token"], 1);
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 7);
    assert_eq!(claims["realm_access"]["roles"], json!([]));

    let (status, second) = refresh(&provider, &first).await;
    assert_eq!(status, 200, "{second}");
    assert_eq!(part(&second["access_token"], 1)["aud"], "playhouse");
    assert_ne!(second["refresh_token"], first["refresh_token"]);
    assert_eq!((provider.refreshes().await, provider.refused_refreshes().await), (1, 0));

    // The state survives a kill, including assigned roles.
    provider.set_roles("bob", &["r1", "r2"]).await;
    provider.kill().await.unwrap();
    provider.start_again().await.unwrap();
    let (status, third) = refresh(&provider, &second).await;
    assert_eq!(status, 200, "{third}");
    for token in ["access_token", "id_token"] {
        assert_eq!(part(&third[token], 1)["realm_access"]["roles"], json!(["r1", "r2"]), "{token}");
    }

    // A refresh token that is used twice counts as stolen: the whole grant is revoked.
    assert_eq!(refresh(&provider, &second).await.1["error"], "invalid_grant");
    assert_eq!(refresh(&provider, &third).await.1["error"], "invalid_grant");
    assert_eq!((provider.refreshes().await, provider.refused_refreshes().await), (1, 2));
}

#[tokio::test]
async fn services_get_tokens_for_themselves() {
    let provider = need!(OidcProvider::start(OidcClients::default()).await);
    let form = [("grant_type", "client_credentials")];
    let (status, tokens) = token(&provider, ("shop", "secret-of-the-service"), &form).await;
    assert_eq!(status, 200, "{tokens}");
    let claims = part(&tokens["access_token"], 1);
    assert_eq!((&claims["sub"], &claims["aud"]), (&json!("shop"), &json!("playhouse")));
    assert_eq!(claims["realm_access"]["roles"], json!(["playhouse-service", "playhouse-may-read"]));
    assert_eq!(token(&provider, ("shop", "guess"), &form).await.0, 401);
}

#[tokio::test]
async fn keys_rotate_and_retire() {
    let provider = need!(OidcProvider::start(OidcClients::default()).await);
    let signer = async || {
        let form = [("grant_type", "client_credentials")];
        let (_, tokens) = token(&provider, ("shop", "secret-of-the-service"), &form).await;
        text(&part(&tokens["access_token"], 0)["kid"]).to_owned()
    };
    let old = signer().await;
    assert_eq!(published(&provider).await, [old.as_str()]);
    provider.rotate_keys().await;
    let new = signer().await;
    assert_ne!(new, old);
    assert_eq!(published(&provider).await, [new.as_str(), &old]);
    provider.retire_keys().await;
    assert_eq!(published(&provider).await, [new.as_str()]);
    assert_eq!((signer().await, provider.keys().await), (new.clone(), vec![new]));
}

#[tokio::test]
async fn signing_out_ends_the_session_and_notifies_the_client() {
    let provider = need!(OidcProvider::start(OidcClients::default()).await);
    let browser = need!(Browser::start().await);
    let client = client(&provider).await;
    let code = sign_in(&browser, &provider, &client, "bob").await["code"].clone();
    let tokens = redeem(&provider, &client, &code).await;
    let mut url = provider.url("/session/end");
    url.query_pairs_mut()
        .append_pair("id_token_hint", text(&tokens["id_token"]))
        .append_pair("post_logout_redirect_uri", &client.url("/"))
        .append_pair("state", "s2");
    browser.goto(url).await;
    let back = client.url("/?state=s2");
    browser.wait_for_url(|url| url == back, DEADLINE).await;
    assert_eq!(provider.signed_in_users().await, Vec::<String>::new());
    assert_notified(&client, &tokens);
    assert_eq!(refresh(&provider, &tokens).await.1["error"], "invalid_grant");
}

#[tokio::test]
async fn session_can_be_ended_without_the_browser() {
    let provider = need!(OidcProvider::start(OidcClients::default()).await);
    let browser = need!(Browser::start().await);
    let client = client(&provider).await;
    let code = sign_in(&browser, &provider, &client, "bob").await["code"].clone();
    let tokens = redeem(&provider, &client, &code).await;
    assert_eq!(provider.end_sessions_of("ada").await, 0);
    assert_eq!(provider.end_sessions_of("bob").await, 1);
    assert_notified(&client, &tokens);
    assert_eq!(provider.signed_in_users().await, Vec::<String>::new());
    assert_eq!(refresh(&provider, &tokens).await.1["error"], "invalid_grant");
    browser.goto(sign_in_url(&provider, &client)).await;
    browser.wait_for("[name=login]", DEADLINE).await;
}

#[track_caller]
fn assert_notified(client: &Pages, tokens: &Value) {
    let requests = client.requests("/logout/backchannel");
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].method, "POST");
    let token = requests[0].body.strip_prefix("logout_token=").unwrap();
    let claims = part(&json!(token), 1);
    assert_eq!(claims["sid"], part(&tokens["id_token"], 1)["sid"]);
    assert_eq!(claims["events"], json!({ "http://schemas.openid.net/event/backchannel-logout": {} }));
}

#[tokio::test]
async fn provider_fails_and_delays_on_demand() {
    let provider = need!(OidcProvider::start(OidcClients::default()).await);
    let discovery = provider.url("/.well-known/openid-configuration");
    let status = async || reqwest::get(discovery.clone()).await.unwrap().status();
    assert_eq!(status().await, 200);
    provider.set_failing(true).await;
    assert_eq!(status().await, 503);
    provider.set_failing(false).await;
    assert_eq!(status().await, 200);
    provider.set_delay(Duration::from_secs(3600)).await;
    assert_eq!(provider.delayed_requests().await, 0);
    assert!(tokio::time::timeout(crate::SILENCE, status()).await.is_err());
    assert_eq!(provider.delayed_requests().await, 1);
    provider.set_delay(Duration::ZERO).await;
    eventually("an answer", DEADLINE, || async { status().await == 200 }).await;
}

//! The requests that the client sends to the issuer.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oidc::{AuthorizationRequest, Config, Error};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use url::Url;

use crate::fake_issuer::Fixture;
use crate::{NOW, config, provider_in, secret};

fn redirect_uri() -> Url {
    Url::parse("https://play.example.org/login/callback").unwrap()
}

fn token_response() -> Value {
    json!({ "access_token": "at", "token_type": "bearer", "expires_in": 300, "refresh_token": "rt", "id_token": "it" })
}

fn pairs(url: &Url) -> HashMap<String, String> {
    url.query_pairs().into_owned().collect()
}

#[tokio::test]
async fn authorize_url_has_all_parameters_of_the_code_flow() {
    let fixture = Fixture::start().await;
    let redirect_uri = redirect_uri();
    let request =
        AuthorizationRequest { redirect_uri: &redirect_uri, state: "st", nonce: "no", challenge: "ch" };
    let url = fixture.provider.authorize_url(&request).await.unwrap();
    assert!(url.as_str().starts_with(&format!("{}/authorize?tenant=games&", fixture.fake.issuer)));
    let expected = [
        ("tenant", "games"),
        ("response_type", "code"),
        ("client_id", "playhouse"),
        ("redirect_uri", redirect_uri.as_str()),
        ("scope", "openid profile"),
        ("state", "st"),
        ("nonce", "no"),
        ("code_challenge", "ch"),
        ("code_challenge_method", "S256"),
    ];
    assert_eq!(pairs(&url), HashMap::from(expected.map(|(name, value)| (name.to_owned(), value.to_owned()))));
    assert!(!format!("{request:?}").contains("no\""));
}

#[tokio::test]
async fn response_of_another_issuer_is_refused() {
    let fixture = Fixture::start().await;
    let issuer = fixture.fake.issuer.as_str();
    assert!(fixture.provider.is_response_of_issuer(Some(issuer)).await.unwrap());
    assert!(fixture.provider.is_response_of_issuer(None).await.unwrap(), "this issuer does not send it");
    assert!(!fixture.provider.is_response_of_issuer(Some("https://evil.example.org")).await.unwrap());
    let fixture = Fixture::start().await;
    fixture.fake.set_metadata("authorization_response_iss_parameter_supported", true.into());
    assert!(!fixture.provider.is_response_of_issuer(None).await.unwrap());
}

#[tokio::test]
async fn public_client_sends_its_id() {
    let fixture = Fixture::start().await;
    fixture.fake.set_token_response(200, token_response());
    let tokens = fixture.provider.redeem("co", "ve", &redirect_uri()).await.unwrap();
    assert_eq!(tokens.access_token.expose(), "at");
    assert_eq!(tokens.refresh_token.unwrap().expose(), "rt");
    assert_eq!(tokens.id_token.unwrap().expose(), "it");
    assert_eq!(tokens.expires_at, NOW.after(Duration::from_secs(300)));
    let (headers, form) = fixture.fake.last_form().unwrap();
    assert!(!headers.contains_key("authorization"));
    for (name, value) in [
        ("grant_type", "authorization_code"),
        ("code", "co"),
        ("code_verifier", "ve"),
        ("redirect_uri", "https://play.example.org/login/callback"),
        ("client_id", "playhouse"),
    ] {
        assert_eq!(form[name], value);
    }
    assert_eq!(form.len(), 5);
    fixture.fake.set_token_response(200, json!({ "access_token": "at", "token_type": "Bearer" }));
    let tokens = fixture.provider.refresh("rt").await.unwrap();
    assert!(tokens.refresh_token.is_none() && tokens.id_token.is_none());
    assert_eq!(tokens.expires_at, NOW.after(Duration::from_secs(60)));
}

#[tokio::test]
async fn confidential_client_sends_its_secret_as_the_issuer_supports_it() {
    let config = Config { client_secret: Some(secret("hu:sh +")), ..config() };
    let fixture = Fixture::with(&config).await;
    fixture.fake.set_token_response(200, token_response());
    fixture.provider.refresh("rt").await.unwrap();
    let (headers, form) = fixture.fake.last_form().unwrap();
    let header = headers["authorization"].to_str().unwrap().strip_prefix("Basic ").unwrap();
    assert_eq!(STANDARD.decode(header).unwrap(), b"playhouse:hu%3Ash+%2B");
    assert!(!form.contains_key("client_secret") && !form.contains_key("client_id"));

    let fixture = Fixture::with(&config).await;
    fixture.fake.set_token_response(200, token_response());
    fixture.fake.set_metadata("token_endpoint_auth_methods_supported", json!(["client_secret_post"]));
    fixture.provider.refresh("rt").await.unwrap();
    let (headers, form) = fixture.fake.last_form().unwrap();
    assert!(!headers.contains_key("authorization"));
    assert_eq!((form["client_id"].as_str(), form["client_secret"].as_str()), ("playhouse", "hu:sh +"));
}

#[tokio::test]
async fn rejections_differ_from_failures() {
    let fixture = Fixture::start().await;
    let refresh = async || fixture.provider.refresh("secret-refresh-token").await.unwrap_err();
    let error = json!({ "error": "invalid_grant", "error_description": "Token is not active" });
    fixture.fake.set_token_response(400, error);
    assert!(refresh().await.is_invalid_grant());
    assert_eq!(
        refresh().await.to_string(),
        "the issuer rejected the request: invalid_grant (Token is not active)"
    );
    fixture.fake.set_token_response(401, json!({ "error": "invalid_client" }));
    assert!(matches!(refresh().await, Error::Rejected { error, .. } if error == "invalid_client"));
    fixture.fake.set_token_response(503, json!("later"));
    assert!(matches!(refresh().await, Error::Failing { status: 503, .. }));
    fixture.fake.set_token_response(400, json!("what?"));
    assert!(matches!(refresh().await, Error::Malformed { .. }));
    fixture.fake.set_token_response(200, json!({ "access_token": "at", "token_type": "mac" }));
    assert!(matches!(refresh().await, Error::Malformed { .. }));
}

#[tokio::test]
async fn errors_and_debug_output_have_no_secrets() {
    let config = Config { client_secret: Some(secret("hush-secret")), ..config() };
    let fixture = Fixture::with(&config).await;
    for body in [
        json!({ "error": "invalid_grant", "error_description": "no hush-token" }),
        json!({ "error": "invalid_client", "error_description": "not hush-secret" }),
        json!({ "access_token": "hush-access", "token_type": "hush-type" }),
        json!({ "access_token": ["hush-access"], "token_type": "Bearer" }),
    ] {
        for status in [200, 400] {
            fixture.fake.set_token_response(status, body.clone());
            let error = fixture.provider.refresh("hush-token").await.unwrap_err();
            let shown = format!("{error} {error:?} {}", base::error::chain(&error));
            assert!(!shown.contains("hush"), "{shown}");
        }
    }
    let good = json!({ "access_token": "hush", "token_type": "Bearer", "refresh_token": "hush", "id_token": "hush" });
    fixture.fake.set_token_response(200, good);
    let tokens = fixture.provider.refresh("hush-token").await.unwrap();
    assert!(!format!("{tokens:?} {:?}", fixture.provider).contains("hush"));
}

#[tokio::test]
async fn refresh_token_is_revoked_if_the_issuer_supports_it() {
    let fixture = Fixture::start().await;
    fixture.fake.set_token_response(200, json!({}));
    fixture.provider.revoke("rt").await.unwrap();
    let (_, form) = fixture.fake.last_form().unwrap();
    assert_eq!((form["token"].as_str(), form["token_type_hint"].as_str()), ("rt", "refresh_token"));
    assert_eq!(form["client_id"], "playhouse");
    let fixture = Fixture::start().await;
    fixture.fake.set_metadata("revocation_endpoint", Value::Null);
    fixture.provider.revoke("rt").await.unwrap();
    assert!(fixture.fake.last_form().is_none());
}

#[tokio::test]
async fn end_session_url_has_hint_and_redirect() {
    let fixture = Fixture::start().await;
    let after = Url::parse("https://play.example.org/").unwrap();
    let url = fixture.provider.end_session_url(Some("it"), &after).await.unwrap().unwrap();
    let pairs = pairs(&url);
    assert_eq!(pairs["id_token_hint"], "it");
    assert_eq!(pairs["post_logout_redirect_uri"], after.as_str());
    assert_eq!(pairs["client_id"], "playhouse");
    let url = fixture.provider.end_session_url(None, &after).await.unwrap().unwrap();
    assert!(!url.as_str().contains("hint"));
    let fixture = Fixture::start().await;
    fixture.fake.set_metadata("end_session_endpoint", Value::Null);
    assert_eq!(fixture.provider.end_session_url(None, &after).await.unwrap(), None);
}

#[tokio::test]
async fn tokens_and_requests_are_counted() {
    let fixture = Fixture::start().await;
    let mut registry = Registry::default();
    let provider = provider_in(&config(), &fixture.fake.issuer, &fixture.clock, &mut registry);
    let token = fixture.token(&json!({}));
    for _ in 0..3 {
        provider.verify_access(&token).await.unwrap();
    }
    let _ = provider.verify_access(&fixture.token(&json!({ "aud": "other" }))).await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        r#"playhouse_oidc_tokens_checked_total{kind="access",outcome="cached"} 2"#,
        r#"playhouse_oidc_tokens_checked_total{kind="access",outcome="valid"} 1"#,
        r#"playhouse_oidc_tokens_checked_total{kind="access",outcome="wrong_audience"} 1"#,
        r#"playhouse_oidc_request_duration_seconds_count{request="keys",outcome="done"} 1"#,
    ] {
        assert!(text.contains(line), "missing: {line}\n{text}");
    }
}

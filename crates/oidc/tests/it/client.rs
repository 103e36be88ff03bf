//! What we ask of an issuer as its client, and how.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oidc::{Authorize, Config, Error};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use url::Url;

use crate::double::World;
use crate::{NOW, config, provider_in, secret};

fn redirect_uri() -> Url {
    Url::parse("https://play.example.org/login/callback").unwrap()
}

fn answer() -> Value {
    json!({ "access_token": "at", "token_type": "bearer", "expires_in": 300, "refresh_token": "rt", "id_token": "it" })
}

fn pairs(url: &Url) -> HashMap<String, String> {
    url.query_pairs().into_owned().collect()
}

#[tokio::test]
async fn the_browser_is_sent_with_everything_that_the_code_flow_asks_for() {
    let world = World::start().await;
    let redirect_uri = redirect_uri();
    let ask = Authorize { redirect_uri: &redirect_uri, state: "st", nonce: "no", challenge: "ch" };
    let url = world.provider.authorize_url(&ask).await.unwrap();
    assert!(url.as_str().starts_with(&format!("{}/authorize?tenant=games&", world.double.issuer)));
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
    assert!(!format!("{ask:?}").contains("no\""));
}

#[tokio::test]
async fn the_answer_must_be_of_this_issuer() {
    let world = World::start().await;
    let issuer = world.double.issuer.as_str();
    assert!(world.provider.is_answer_of_issuer(Some(issuer)).await.unwrap());
    assert!(world.provider.is_answer_of_issuer(None).await.unwrap(), "this one does not say");
    assert!(!world.provider.is_answer_of_issuer(Some("https://evil.example.org")).await.unwrap());
    let world = World::start().await;
    world.double.say("authorization_response_iss_parameter_supported", true.into());
    assert!(!world.provider.is_answer_of_issuer(None).await.unwrap());
}

#[tokio::test]
async fn a_public_client_says_who_it_is() {
    let world = World::start().await;
    world.double.answer_token(200, answer());
    let tokens = world.provider.redeem("co", "ve", &redirect_uri()).await.unwrap();
    assert_eq!(tokens.access_token.expose(), "at");
    assert_eq!(tokens.refresh_token.unwrap().expose(), "rt");
    assert_eq!(tokens.id_token.unwrap().expose(), "it");
    assert_eq!(tokens.expires_at, NOW.after(Duration::from_secs(300)));
    let (headers, form) = world.double.last_form().unwrap();
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
    world.double.answer_token(200, json!({ "access_token": "at", "token_type": "Bearer" }));
    let tokens = world.provider.refresh("rt").await.unwrap();
    assert!(tokens.refresh_token.is_none() && tokens.id_token.is_none());
    assert_eq!(tokens.expires_at, NOW.after(Duration::from_secs(60)));
}

#[tokio::test]
async fn a_confidential_client_shows_its_secret_where_the_issuer_wants_it() {
    let config = Config { client_secret: Some(secret("hu:sh +")), ..config() };
    let world = World::with(&config).await;
    world.double.answer_token(200, answer());
    world.provider.refresh("rt").await.unwrap();
    let (headers, form) = world.double.last_form().unwrap();
    let header = headers["authorization"].to_str().unwrap().strip_prefix("Basic ").unwrap();
    assert_eq!(STANDARD.decode(header).unwrap(), b"playhouse:hu%3Ash+%2B");
    assert!(!form.contains_key("client_secret") && !form.contains_key("client_id"));

    let world = World::with(&config).await;
    world.double.answer_token(200, answer());
    world.double.say("token_endpoint_auth_methods_supported", json!(["client_secret_post"]));
    world.provider.refresh("rt").await.unwrap();
    let (headers, form) = world.double.last_form().unwrap();
    assert!(!headers.contains_key("authorization"));
    assert_eq!((form["client_id"].as_str(), form["client_secret"].as_str()), ("playhouse", "hu:sh +"));
}

#[tokio::test]
async fn what_the_issuer_refuses_is_told_apart_from_its_troubles() {
    let world = World::start().await;
    let refresh = async || world.provider.refresh("secret-refresh-token").await.unwrap_err();
    let error = json!({ "error": "invalid_grant", "error_description": "Token is not active" });
    world.double.answer_token(400, error);
    assert!(refresh().await.is_invalid_grant());
    assert_eq!(refresh().await.to_string(), "the issuer refuses: invalid_grant (Token is not active)");
    world.double.answer_token(401, json!({ "error": "invalid_client" }));
    assert!(matches!(refresh().await, Error::Rejected { error, .. } if error == "invalid_client"));
    world.double.answer_token(503, json!("later"));
    assert!(matches!(refresh().await, Error::Failing { status: 503, .. }));
    world.double.answer_token(400, json!("what?"));
    assert!(matches!(refresh().await, Error::Malformed { .. }));
    world.double.answer_token(200, json!({ "access_token": "at", "token_type": "mac" }));
    assert!(matches!(refresh().await, Error::Malformed { .. }));
}

#[tokio::test]
async fn secrets_are_in_no_error_and_no_debug() {
    let config = Config { client_secret: Some(secret("hush-secret")), ..config() };
    let world = World::with(&config).await;
    for answer in [
        json!({ "error": "invalid_grant", "error_description": "no hush-token" }),
        json!({ "error": "invalid_client", "error_description": "not hush-secret" }),
        json!({ "access_token": "hush-access", "token_type": "hush-type" }),
        json!({ "access_token": ["hush-access"], "token_type": "Bearer" }),
    ] {
        for status in [200, 400] {
            world.double.answer_token(status, answer.clone());
            let error = world.provider.refresh("hush-token").await.unwrap_err();
            let shown = format!("{error} {error:?} {}", base::error::chain(&error));
            assert!(!shown.contains("hush"), "{shown}");
        }
    }
    let good = json!({ "access_token": "hush", "token_type": "Bearer", "refresh_token": "hush", "id_token": "hush" });
    world.double.answer_token(200, good);
    let tokens = world.provider.refresh("hush-token").await.unwrap();
    assert!(!format!("{tokens:?} {:?}", world.provider).contains("hush"));
}

#[tokio::test]
async fn a_refresh_token_is_revoked_where_that_can_be_done() {
    let world = World::start().await;
    world.double.answer_token(200, json!({}));
    world.provider.revoke("rt").await.unwrap();
    let (_, form) = world.double.last_form().unwrap();
    assert_eq!((form["token"].as_str(), form["token_type_hint"].as_str()), ("rt", "refresh_token"));
    assert_eq!(form["client_id"], "playhouse");
    let world = World::start().await;
    world.double.say("revocation_endpoint", Value::Null);
    world.provider.revoke("rt").await.unwrap();
    assert!(world.double.last_form().is_none());
}

#[tokio::test]
async fn the_session_at_the_issuer_can_be_ended() {
    let world = World::start().await;
    let after = Url::parse("https://play.example.org/").unwrap();
    let url = world.provider.end_session_url(Some("it"), &after).await.unwrap().unwrap();
    let pairs = pairs(&url);
    assert_eq!(pairs["id_token_hint"], "it");
    assert_eq!(pairs["post_logout_redirect_uri"], after.as_str());
    assert_eq!(pairs["client_id"], "playhouse");
    let url = world.provider.end_session_url(None, &after).await.unwrap().unwrap();
    assert!(!url.as_str().contains("hint"));
    let world = World::start().await;
    world.double.say("end_session_endpoint", Value::Null);
    assert_eq!(world.provider.end_session_url(None, &after).await.unwrap(), None);
}

#[tokio::test]
async fn what_happens_is_counted() {
    let world = World::start().await;
    let mut registry = Registry::default();
    let provider = provider_in(&config(), &world.double.issuer, &world.clock, &mut registry);
    let token = world.token(&json!({}));
    for _ in 0..3 {
        provider.verify_access(&token).await.unwrap();
    }
    let _ = provider.verify_access(&world.token(&json!({ "aud": "other" }))).await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        r#"oidc_tokens_checked_total{kind="access",outcome="remembered"} 2"#,
        r#"oidc_tokens_checked_total{kind="access",outcome="good"} 1"#,
        r#"oidc_tokens_checked_total{kind="access",outcome="wrong_audience"} 1"#,
        r#"oidc_request_duration_seconds_count{request="keys",outcome="done"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

//! The issuer is away, or not itself.

use std::time::Duration;

use base::Clock;
use base::error::Coded;
use oidc::{Config, Error, Refused};
use serde_json::json;
use url::Url;

use crate::double::{Signer, World};
use crate::{NOW, config, provider};

#[tokio::test]
async fn known_keys_go_on_while_the_issuer_is_away() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    world.double.break_with(503, "");
    world.clock.advance(Duration::from_secs(60));
    assert!(world.provider.verify_access(&world.token(&json!({}))).await.is_ok());
    // Somebody else's key is asked for in vain, once.
    let stranger = Signer::ec("two").sign(&world.double.claims());
    for _ in 0..10 {
        assert!(matches!(world.provider.verify_access(&stranger).await, Err(Refused::UnknownKey)));
    }
    assert!(world.provider.verify_access(&world.token(&json!({ "jti": 2 }))).await.is_ok());
    assert!(world.provider.ready().await.is_ok());
    world.double.repair();
    assert!(world.provider.verify_access(&world.token(&json!({ "jti": 3 }))).await.is_ok());
}

#[tokio::test]
async fn an_answer_without_keys_takes_none_away() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    world.double.publish(&[]);
    world.clock.advance(Duration::from_secs(60));
    let stranger = Signer::ec("two").sign(&world.double.claims());
    assert!(matches!(world.provider.verify_access(&stranger).await, Err(Refused::UnknownKey)));
    assert!(world.provider.verify_access(&world.token(&json!({}))).await.is_ok());
}

#[tokio::test]
async fn without_keys_no_token_can_be_checked_and_soon_it_is_tried_again() {
    let world = World::start().await;
    world.double.break_with(500, "");
    let token = world.token(&json!({}));
    let refused = world.provider.verify_access(&token).await.unwrap_err();
    assert!(matches!(refused, Refused::Unavailable(Error::Failing { status: 500, .. })), "{refused:?}");
    assert!(refused.is_passing());
    world.double.repair();
    assert!(world.provider.ready().await.unwrap_err().is_passing(), "not yet");
    world.clock.advance(Duration::from_millis(250));
    world.provider.ready().await.unwrap();
    assert!(world.provider.verify_access(&token).await.is_ok());
}

#[tokio::test]
async fn nobody_at_the_address_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let provider = provider(&config(), &issuer, &Clock::manual(NOW));
    let error = provider.ready().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)) && error.is_passing(), "{error:?}");
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_in_time_is_unreachable() {
    let world = World::with(&Config { timeout: Duration::from_millis(100), ..config() }).await;
    let _gate = world.double.hold_keys();
    assert!(matches!(world.provider.ready().await, Err(Error::Unreachable(_))));
}

#[tokio::test]
async fn what_is_not_a_discovery_document_of_the_issuer_is_refused() {
    for (status, body) in [(200, "<html>"), (200, "{}"), (404, ""), (302, "")] {
        let world = World::start().await;
        world.double.break_with(status, body);
        let error = world.provider.ready().await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{status}: {error:?}");
        assert!(error.to_string().len() < 300, "{error}");
    }
    let world = World::start().await;
    world.double.say("issuer", "https://evil.example.org".into());
    assert!(matches!(world.provider.ready().await, Err(Error::Malformed { .. })));
    let world = World::start().await;
    world.double.say("token_endpoint", "http://evil.example.org/token".into());
    assert!(matches!(world.provider.ready().await, Err(Error::Malformed { .. })));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read() {
    let world = World::start().await;
    world.double.say("padding", "x".repeat(1_000_000).into());
    world.provider.ready().await.unwrap();
    let world = World::start().await;
    world.double.say("padding", "x".repeat(1 << 20).into());
    let error = world.provider.ready().await.unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let world = World::start().await;
        world.double.break_with(status, "");
        assert!(world.provider.ready().await.is_err());
        world.double.repair();
        world.clock.advance(Duration::from_secs(1));
        world.provider.ready().await.unwrap();
        world.double.break_with(status, "");
        assert!(matches!(world.provider.refresh("rt").await, Err(Error::Malformed { .. })));
        world.provider.revoke("rt").await.unwrap_err();
        assert_eq!(world.double.followers(), 0);
    }
}

#[tokio::test]
async fn an_issuer_that_others_can_speak_for_is_refused_at_once() {
    let metrics = oidc::Metrics::new(&mut prometheus_client::registry::Registry::default());
    for issuer in ["http://id.example.org", "ftp://localhost", "https://me@id.example.org", "https://h/?q"] {
        let issuer = Url::parse(issuer).unwrap();
        let provider = oidc::Provider::new(&config(), issuer, Clock::manual(NOW), metrics.clone());
        assert!(matches!(provider, Err(Error::Setup(_))));
    }
}

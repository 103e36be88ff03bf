//! The issuer is unreachable or sends invalid responses.

use std::time::Duration;

use base::Clock;
use base::error::Coded;
use oidc::{Config, Error, TokenError};
use serde_json::json;
use url::Url;

use crate::fake_issuer::{Fixture, Signer};
use crate::{NOW, config, provider};

#[tokio::test]
async fn known_keys_stay_valid_while_the_issuer_fails() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    fixture.fake.break_with(503, "");
    fixture.clock.advance(Duration::from_secs(60));
    assert!(fixture.provider.verify_access(&fixture.token(&json!({}))).await.is_ok());
    // An unknown key causes one fetch, which fails.
    let stranger = Signer::ec("two").sign(&fixture.fake.claims());
    for _ in 0..10 {
        assert!(matches!(fixture.provider.verify_access(&stranger).await, Err(TokenError::UnknownKey)));
    }
    assert!(fixture.provider.verify_access(&fixture.token(&json!({ "jti": 2 }))).await.is_ok());
    assert!(fixture.provider.ready().await.is_ok());
    fixture.fake.repair();
    assert!(fixture.provider.verify_access(&fixture.token(&json!({ "jti": 3 }))).await.is_ok());
}

#[tokio::test]
async fn empty_key_set_does_not_drop_known_keys() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    fixture.fake.publish(&[]);
    fixture.clock.advance(Duration::from_secs(60));
    let stranger = Signer::ec("two").sign(&fixture.fake.claims());
    assert!(matches!(fixture.provider.verify_access(&stranger).await, Err(TokenError::UnknownKey)));
    assert!(fixture.provider.verify_access(&fixture.token(&json!({}))).await.is_ok());
}

#[tokio::test]
async fn first_fetch_is_retried_after_250_ms() {
    let fixture = Fixture::start().await;
    fixture.fake.break_with(500, "");
    let token = fixture.token(&json!({}));
    let refused = fixture.provider.verify_access(&token).await.unwrap_err();
    assert!(matches!(refused, TokenError::Unavailable(Error::Failing { status: 500, .. })), "{refused:?}");
    assert!(refused.is_transient());
    fixture.fake.repair();
    assert!(fixture.provider.ready().await.unwrap_err().is_transient(), "still in the cooldown");
    fixture.clock.advance(Duration::from_millis(250));
    fixture.provider.ready().await.unwrap();
    assert!(fixture.provider.verify_access(&token).await.is_ok());
}

#[tokio::test]
async fn refused_connection_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let provider = provider(&config(), &issuer, &Clock::manual(NOW));
    let error = provider.ready().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn timeout_is_unreachable() {
    let fixture = Fixture::with(&Config { timeout: Duration::from_millis(100), ..config() }).await;
    let _gate = fixture.fake.hold_keys();
    assert!(matches!(fixture.provider.ready().await, Err(Error::Unreachable(_))));
}

#[tokio::test]
async fn invalid_discovery_document_is_refused() {
    for (status, body) in [(200, "<html>"), (200, "{}"), (404, ""), (302, "")] {
        let fixture = Fixture::start().await;
        fixture.fake.break_with(status, body);
        let error = fixture.provider.ready().await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{status}: {error:?}");
        assert!(error.to_string().len() < 300, "{error}");
    }
    let fixture = Fixture::start().await;
    fixture.fake.set_metadata("issuer", "https://evil.example.org".into());
    assert!(matches!(fixture.provider.ready().await, Err(Error::Malformed { .. })));
    let fixture = Fixture::start().await;
    fixture.fake.set_metadata("token_endpoint", "http://evil.example.org/token".into());
    assert!(matches!(fixture.provider.ready().await, Err(Error::Malformed { .. })));
}

#[tokio::test]
async fn oversized_response_is_refused() {
    let fixture = Fixture::start().await;
    fixture.fake.set_metadata("padding", "x".repeat(1_000_000).into());
    fixture.provider.ready().await.unwrap();
    let fixture = Fixture::start().await;
    fixture.fake.set_metadata("padding", "x".repeat(1 << 20).into());
    let error = fixture.provider.ready().await.unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let fixture = Fixture::start().await;
        fixture.fake.break_with(status, "");
        assert!(fixture.provider.ready().await.is_err());
        fixture.fake.repair();
        fixture.clock.advance(Duration::from_secs(1));
        fixture.provider.ready().await.unwrap();
        fixture.fake.break_with(status, "");
        assert!(matches!(fixture.provider.refresh("rt").await, Err(Error::Malformed { .. })));
        fixture.provider.revoke("rt").await.unwrap_err();
        assert_eq!(fixture.fake.followers(), 0);
    }
}

#[tokio::test]
async fn insecure_issuer_url_is_refused() {
    let metrics = oidc::Metrics::new(&mut prometheus_client::registry::Registry::default());
    for issuer in ["http://id.example.org", "ftp://localhost", "https://me@id.example.org", "https://h/?q"] {
        let issuer = Url::parse(issuer).unwrap();
        let provider = oidc::Provider::new(&config(), issuer, Clock::manual(NOW), metrics.clone());
        assert!(matches!(provider, Err(Error::Setup(_))));
    }
}

//! Key rotation at the issuer. Forged tokens cause no fetches.

use std::time::Duration;

use oidc::TokenError;
use serde_json::json;

use crate::fake_issuer::{Fixture, Signer};
use crate::{PATIENCE, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_share_one_fetch_of_a_new_key() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    assert_eq!(fixture.fake.key_requests(), 1);
    let next = Signer::ec("two");
    fixture.fake.publish(&[&fixture.signer, &next]);
    fixture.clock.advance(Duration::from_secs(10));

    // All requests are in flight before the issuer responds.
    let gate = fixture.fake.hold_keys();
    let verifications: Vec<_> = (0..100)
        .map(|number| {
            let mut claims = fixture.fake.claims();
            claims["jti"] = number.into();
            let (provider, token) = (fixture.provider.clone(), next.sign(&claims));
            tokio::spawn(async move { provider.verify_access(&token).await.map(drop) })
        })
        .collect();
    testkit::eventually("the request", PATIENCE, || async { fixture.fake.key_requests() == 2 }).await;
    gate.add_permits(100);
    for verification in verifications {
        verification.await.unwrap().unwrap();
    }
    assert_eq!(fixture.fake.key_requests(), 2);
    // The old key is still published.
    assert!(fixture.provider.verify_access(&fixture.token(&json!({}))).await.is_ok());
}

#[tokio::test]
async fn fruitless_fetch_starts_the_cooldown() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    let (next, forged) = (Signer::ec("two"), Signer::ec("three"));
    let token = next.sign(&fixture.fake.claims());
    let refused = fixture.provider.verify_access(&forged.sign(&fixture.fake.claims())).await;
    assert!(matches!(refused, Err(TokenError::UnknownKey)));
    assert_eq!(fixture.fake.key_requests(), 2);
    fixture.fake.publish(&[&next]);
    fixture.clock.advance(Duration::from_millis(9_999));
    assert!(matches!(fixture.provider.verify_access(&token).await, Err(TokenError::UnknownKey)));
    assert_eq!(fixture.fake.key_requests(), 2);
    fixture.clock.advance(Duration::from_millis(1));
    assert!(fixture.provider.verify_access(&token).await.is_ok());
    assert_eq!(fixture.fake.key_requests(), 3);
}

#[tokio::test]
async fn repeated_rotation_needs_no_cooldown() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    for round in 0..5 {
        let next = Signer::ec(Box::leak(format!("key-{round}").into_boxed_str()));
        fixture.fake.publish(&[&next]);
        assert!(fixture.provider.verify_access(&next.sign(&fixture.fake.claims())).await.is_ok(), "{round}");
    }
    assert_eq!(fixture.fake.key_requests(), 6);
}

#[tokio::test]
async fn forged_key_ids_cause_at_most_one_fetch() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    fixture.clock.advance(Duration::from_secs(10));
    for number in 0..1_000 {
        let header = json!({ "alg": "ES256", "typ": "JWT", "kid": format!("forged-{number}") });
        let token = fixture.signer.sign_with(&header, &fixture.fake.claims());
        assert!(matches!(fixture.provider.verify_access(&token).await, Err(TokenError::UnknownKey)));
    }
    assert_eq!(fixture.fake.key_requests(), 2);
    assert!(fixture.provider.verify_access(&fixture.token(&json!({}))).await.is_ok());
}

#[tokio::test]
async fn withdrawn_key_invalidates_its_cached_tokens() {
    let fixture = Fixture::start().await;
    let token = fixture.token(&json!({}));
    fixture.provider.verify_access(&token).await.unwrap();
    let next = Signer::ec("two");
    fixture.fake.publish(&[&next]);
    fixture.clock.advance(Duration::from_secs(10));
    assert!(fixture.provider.cached(&token).is_some(), "the keys were not fetched yet");
    let other = next.sign(&fixture.fake.claims());
    fixture.provider.verify_access(&other).await.unwrap();
    assert!(fixture.provider.cached(&token).is_none());
    assert!(matches!(fixture.provider.verify_access(&token).await, Err(TokenError::UnknownKey)));
    // A token stays cached if its key is in the next key set too.
    fixture.fake.publish(&[&fixture.signer, &next]);
    fixture.clock.advance(Duration::from_secs(10));
    fixture.provider.verify_access(&token).await.unwrap();
    assert!(fixture.provider.cached(&other).is_some());
}

#[tokio::test]
async fn new_key_with_the_same_id_replaces_the_old_one() {
    let fixture = Fixture::start().await;
    let token = fixture.token(&json!({}));
    fixture.provider.verify_access(&token).await.unwrap();
    let (replacement, next) = (Signer::ec("one"), Signer::ec("two"));
    fixture.fake.publish(&[&replacement, &next]);
    fixture.clock.advance(Duration::from_secs(10));
    fixture.provider.verify_access(&next.sign(&fixture.fake.claims())).await.unwrap();
    assert!(fixture.provider.cached(&token).is_none());
    assert!(fixture.provider.verify_access(&replacement.sign(&fixture.fake.claims())).await.is_ok());
}

#[tokio::test]
async fn old_keys_are_refreshed_in_the_background() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    fixture.clock.advance(config().keys_max_age - Duration::from_secs(1));
    fixture.provider.ready().await.unwrap();
    assert_eq!(fixture.fake.key_requests(), 1);
    // No caller waits for the response.
    let gate = fixture.fake.hold_keys();
    fixture.clock.advance(Duration::from_secs(1));
    for _ in 0..10 {
        fixture.provider.ready().await.unwrap();
    }
    testkit::eventually("the request", PATIENCE, || async { fixture.fake.key_requests() == 2 }).await;
    let next = Signer::ec("two");
    fixture.fake.publish(&[&next]);
    gate.add_permits(100);
    testkit::eventually("the new key", PATIENCE, || async {
        fixture.provider.verify_access(&next.sign(&fresh(&fixture))).await
    })
    .await;
    assert_eq!(fixture.fake.key_requests(), 2);
}

#[tokio::test]
async fn cancelled_caller_does_not_stop_the_fetch() {
    let fixture = Fixture::start().await;
    fixture.provider.ready().await.unwrap();
    let next = Signer::ec("two");
    fixture.fake.publish(&[&next]);
    fixture.clock.advance(Duration::from_secs(10));
    let gate = fixture.fake.hold_keys();
    let (provider, token) = (fixture.provider.clone(), next.sign(&fixture.fake.claims()));
    let same_token = token.clone();
    let caller = tokio::spawn(async move { provider.verify_access(&same_token).await.map(drop) });
    testkit::eventually("the request", PATIENCE, || async { fixture.fake.key_requests() == 2 }).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    gate.add_permits(1);
    fixture.provider.verify_access(&token).await.unwrap();
    assert_eq!(fixture.fake.key_requests(), 2);
}

/// Returns claims that are valid at the clock's current time.
fn fresh(fixture: &Fixture) -> serde_json::Value {
    let now = fixture.clock.now().as_millis() / 1000;
    let mut claims = fixture.fake.claims();
    claims["iat"] = now.into();
    claims["exp"] = (now + 300).into();
    claims
}

//! Access tokens: which are accepted, and why the others are refused.

use std::time::Duration;

use aws_lc_rs::hmac;
use base::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use oidc::{Config, TokenError};
use serde_json::{Value, json};

use crate::fake_issuer::{FakeIssuer, Fixture, Signer, changed, message, rsa_public_der};
use crate::{NOW, config, provider};

/// Asserts that a valid token is refused after some changes.
macro_rules! refused {
    ($fixture:expr, $changes:tt, $kind:pat) => {
        let changes = json!($changes);
        let result = $fixture.provider.verify_access(&$fixture.token(&changes)).await;
        assert!(matches!(result, Err($kind)), "{changes}: {result:?}");
    };
}

fn seconds(after_now: i64) -> i64 {
    NOW.as_millis() / 1000 + after_now
}

#[tokio::test]
async fn valid_token_yields_its_claims() {
    let fixture = Fixture::start().await;
    let access = fixture.provider.verify_access(&fixture.token(&json!({}))).await.unwrap();
    assert_eq!(access.issuer, fixture.fake.issuer.as_str());
    assert_eq!(access.subject, "f3a1");
    assert_eq!(access.name.as_deref(), Some("Ada Lovelace"));
    assert_eq!(access.roles, ["player"]);
    assert_eq!(access.client.as_deref(), Some("game-client"));
    assert_eq!(access.sid.as_deref(), Some("session-1"));
    assert_eq!(access.expires_at, Timestamp::from_millis(seconds(300) * 1000));
    assert!(!access.is_operator && !access.is_service && access.rights.is_empty());
}

#[tokio::test]
async fn rsa_signatures_are_accepted() {
    let signer = Signer::rsa("rsa");
    let fake = FakeIssuer::start(&[&signer, &Signer::ec("ec")]).await;
    let provider = provider(&config(), &fake.issuer, &base::Clock::manual(NOW));
    assert!(provider.verify_access(&signer.sign(&fake.claims())).await.is_ok());
}

#[tokio::test]
async fn roles_mark_operators_and_services() {
    let fixture = Fixture::start().await;
    let access = async |roles: Value| {
        let token = fixture.token(&json!({ "realm_access": { "roles": roles } }));
        fixture.provider.verify_access(&token).await.unwrap()
    };
    let operator = access(json!(["playhouse-operator", "playhouse-may-accounts"])).await;
    assert!(operator.is_operator && !operator.is_service);
    assert!(operator.rights.is_empty(), "rights are for services");
    let service =
        access(json!("playhouse-service playhouse-may-entitlements playhouse-may-read other")).await;
    assert!(service.is_service && !service.is_operator);
    assert_eq!(service.rights, ["entitlements", "read"]);
    assert_eq!(service.roles.len(), 4);
    let odd = access(json!([1, null, "playhouse-operator"])).await;
    assert!(odd.is_operator);
}

#[tokio::test]
async fn name_and_roles_are_read_from_the_configured_claims() {
    let config = Config {
        roles_claim: "https://games.example.org/roles".to_owned(),
        name_claim: "nickname".to_owned(),
        ..config()
    };
    let fixture = Fixture::with(&config).await;
    let claims = json!({ "https://games.example.org/roles": ["playhouse-operator"], "nickname": "Countess" });
    let access = fixture.provider.verify_access(&fixture.token(&claims)).await.unwrap();
    assert!(access.is_operator);
    assert_eq!(access.name.as_deref(), Some("Countess"));
    let fallback = fixture.token(&json!({ "preferred_username": "ada" }));
    assert_eq!(fixture.provider.verify_access(&fallback).await.unwrap().name.as_deref(), Some("ada"));
    assert_eq!(fixture.provider.verify_access(&fixture.token(&json!({}))).await.unwrap().name, None);
}

#[tokio::test]
async fn times_are_checked_with_the_clock_skew() {
    let fixture = Fixture::start().await;
    let is_valid =
        async |changes: Value| fixture.provider.verify_access(&fixture.token(&changes)).await.is_ok();
    assert!(is_valid(json!({ "exp": seconds(-29) })).await);
    refused!(fixture, { "exp": seconds(-30) }, TokenError::Expired);
    refused!(fixture, { "exp": 0 }, TokenError::Expired);
    refused!(fixture, { "exp": null }, TokenError::Malformed);
    refused!(fixture, { "exp": "tomorrow" }, TokenError::Malformed);
    refused!(fixture, { "exp": -1 }, TokenError::Malformed);
    assert!(is_valid(json!({ "nbf": seconds(30) })).await);
    refused!(fixture, { "nbf": seconds(31) }, TokenError::NotYetValid);
    refused!(fixture, { "iat": seconds(31) }, TokenError::NotYetValid);
    assert!(is_valid(json!({ "exp": seconds(10) as f64 + 0.5, "iat": null })).await);
    assert!(is_valid(json!({ "exp": 1e300 })).await);
}

#[tokio::test]
async fn wrong_issuer_audience_or_subject_is_refused() {
    let fixture = Fixture::start().await;
    let issuer = fixture.fake.issuer.as_str();
    refused!(fixture, { "iss": "https://evil.example.org" }, TokenError::WrongIssuer);
    refused!(fixture, { "iss": format!("{issuer}/") }, TokenError::WrongIssuer);
    refused!(fixture, { "iss": [issuer] }, TokenError::WrongIssuer);
    refused!(fixture, { "iss": null }, TokenError::WrongIssuer);
    refused!(fixture, { "aud": "account" }, TokenError::WrongAudience);
    refused!(fixture, { "aud": [] }, TokenError::WrongAudience);
    refused!(fixture, { "aud": null }, TokenError::WrongAudience);
    refused!(fixture, { "aud": { "playhouse": true } }, TokenError::Malformed);
    refused!(fixture, { "sub": null }, TokenError::Malformed);
    refused!(fixture, { "sub": "" }, TokenError::Malformed);
    refused!(fixture, { "sub": 7 }, TokenError::Malformed);
    refused!(fixture, { "sub": "x".repeat(256) }, TokenError::Malformed);
    assert!(fixture.provider.verify_access(&fixture.token(&json!({ "aud": "playhouse" }))).await.is_ok());
}

#[tokio::test]
async fn other_kinds_of_tokens_are_not_access_tokens() {
    let fixture = Fixture::start().await;
    refused!(fixture, { "nonce": "n" }, TokenError::WrongType);
    refused!(fixture, { "at_hash": "h" }, TokenError::WrongType);
    refused!(fixture, { "typ": "ID" }, TokenError::WrongType);
    refused!(fixture, { "typ": "Refresh" }, TokenError::WrongType);
    refused!(fixture, { "events": {} }, TokenError::WrongType);
    let with_type = async |kind: Value, changes: Value| {
        let header = changed(fixture.signer.header(), &json!({ "typ": kind }));
        let token = fixture.signer.sign_with(&header, &changed(fixture.fake.claims(), &changes));
        fixture.provider.verify_access(&token).await
    };
    for kind in ["at+jwt", "application/at+jwt", "AT+JWT", "jwt"] {
        assert!(with_type(json!(kind), json!({})).await.is_ok(), "{kind}");
    }
    assert!(with_type(Value::Null, json!({})).await.is_ok());
    // Older versions of Keycloak put a nonce into access tokens, with the type `Bearer`.
    assert!(with_type(json!("JWT"), json!({ "typ": "Bearer", "nonce": "n" })).await.is_ok());
    for kind in ["logout+jwt", "dpop+jwt", "x"] {
        assert!(matches!(with_type(json!(kind), json!({})).await, Err(TokenError::WrongType)), "{kind}");
    }
}

#[tokio::test]
async fn forged_signatures_are_refused() {
    let fixture = Fixture::start().await;
    let claims = fixture.fake.claims();
    let refused = async |token: String| fixture.provider.verify_access(&token).await.unwrap_err();

    let impostor = Signer::ec("one");
    assert!(matches!(refused(impostor.sign(&claims)).await, TokenError::BadSignature));

    let good = fixture.token(&json!({}));
    let (head, signature) = good.rsplit_once('.').unwrap();
    let header = head.split_once('.').unwrap().0;
    let operator = changed(claims.clone(), &json!({ "realm_access": { "roles": ["playhouse-operator"] } }));
    let payload = URL_SAFE_NO_PAD.encode(operator.to_string());
    assert!(matches!(refused(format!("{header}.{payload}.{signature}")).await, TokenError::BadSignature));

    let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    bytes[10] ^= 1;
    let tampered = URL_SAFE_NO_PAD.encode(&bytes);
    assert!(matches!(refused(format!("{head}.{tampered}")).await, TokenError::BadSignature));
    for odd in ["", "AA", "!", &URL_SAFE_NO_PAD.encode([0; 64])] {
        assert!(matches!(refused(format!("{head}.{odd}")).await, TokenError::BadSignature), "{odd}");
    }
}

#[tokio::test]
async fn token_cannot_choose_its_algorithm() {
    let signer = Signer::rsa("rsa");
    let fake = FakeIssuer::start(&[&signer]).await;
    let provider = provider(&config(), &fake.issuer, &base::Clock::manual(NOW));
    let claims = fake.claims();
    let refused = async |token: String| provider.verify_access(&token).await.unwrap_err();

    for none in ["none", "None", "NONE", ""] {
        let header = json!({ "alg": none, "kid": "rsa" });
        let token = format!("{}.", message(&header, &claims));
        assert!(matches!(refused(token).await, TokenError::WrongAlgorithm), "{none}");
    }

    // The public key as a shared secret, in its common encodings.
    let der = rsa_public_der();
    let pem =
        format!("-----BEGIN RSA PUBLIC KEY-----\n{}\n-----END RSA PUBLIC KEY-----\n", STANDARD.encode(&der));
    let modulus = URL_SAFE_NO_PAD.decode(signer.jwk()["n"].as_str().unwrap()).unwrap();
    for secret in [pem.as_bytes(), pem.trim().as_bytes(), &der, &modulus] {
        let message = message(&json!({ "alg": "HS256", "typ": "JWT", "kid": "rsa" }), &claims);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
        assert!(matches!(refused(token).await, TokenError::WrongAlgorithm));
    }

    // Accepted algorithms with a key of another type, or with another padding.
    for alg in ["ES256", "EdDSA"] {
        let token = signer.sign_with(&json!({ "alg": alg, "kid": "rsa" }), &claims);
        assert!(matches!(refused(token).await, TokenError::WrongAlgorithm), "{alg}");
    }
    let token = signer.sign_with(&json!({ "alg": "PS256", "kid": "rsa" }), &claims);
    assert!(matches!(refused(token).await, TokenError::BadSignature));
    let token = signer.sign_with(&json!({ "alg": "RS512", "kid": "rsa" }), &claims);
    assert!(matches!(refused(token).await, TokenError::WrongAlgorithm), "not configured");
    assert!(provider.verify_access(&signer.sign(&claims)).await.is_ok());
}

#[tokio::test]
async fn malformed_token_is_refused_without_a_request_to_the_issuer() {
    let fixture = Fixture::start().await;
    let large = fixture.token(&json!({ "padding": "x".repeat(20_000) }));
    let extension = changed(fixture.signer.header(), &json!({ "crit": ["b64"], "b64": false }));
    let critical = fixture.signer.sign_with(&extension, &fixture.fake.claims());
    let four = format!("{}.x", fixture.token(&json!({})));
    for wrong in ["", ".", "..", "a.b", "a.b.c", "e30.e30.", "ä.ö.ü", &critical, &four] {
        assert!(matches!(fixture.provider.verify_access(wrong).await, Err(TokenError::Malformed)), "{wrong}");
    }
    assert!(matches!(fixture.provider.verify_access(&large).await, Err(TokenError::TooLarge)));
    assert_eq!(fixture.fake.key_requests(), 0);
}

#[tokio::test]
async fn token_without_kid_is_accepted_if_only_one_key_fits() {
    let (one, other) = (Signer::without_kid(), Signer::ec("other"));
    let fake = FakeIssuer::start(&[&one, &other]).await;
    let clock = base::Clock::manual(NOW);
    let provider = provider(&config(), &fake.issuer, &clock);
    let token = one.sign(&fake.claims());
    assert!(matches!(provider.verify_access(&token).await, Err(TokenError::UnknownKey)));
    // Only one of the two keys fits the algorithm.
    fake.publish(&[&one, &Signer::rsa("rsa")]);
    clock.advance(Duration::from_secs(10));
    assert!(provider.verify_access(&token).await.is_ok());
    // An issuer without key ids can rotate its key too.
    let next = Signer::without_kid();
    fake.publish(&[&next]);
    clock.advance(Duration::from_secs(10));
    assert!(provider.verify_access(&next.sign(&fake.claims())).await.is_ok());
}

#[tokio::test]
async fn verified_token_is_cached_until_it_expires() {
    let fixture = Fixture::start().await;
    let token = fixture.token(&json!({}));
    assert!(fixture.provider.cached(&token).is_none());
    let access = fixture.provider.verify_access(&token).await.unwrap();
    assert_eq!(fixture.provider.cached(&token).as_ref(), Some(&access));
    assert!(fixture.provider.cached(&format!("{token}x")).is_none());
    fixture.clock.advance(Duration::from_secs(300 + 29));
    assert!(fixture.provider.cached(&token).is_some(), "as long as the token itself is accepted");
    fixture.clock.advance(Duration::from_secs(1));
    assert!(fixture.provider.cached(&token).is_none());
    assert!(matches!(fixture.provider.verify_access(&token).await, Err(TokenError::Expired)));
}

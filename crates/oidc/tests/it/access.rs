//! Access tokens: which are good, and why the others are not.

use std::time::Duration;

use aws_lc_rs::hmac;
use base::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use oidc::{Config, Refused};
use serde_json::{Value, json};

use crate::double::{Double, Signer, World, changed, message, rsa_public_der};
use crate::{NOW, config, provider};

/// Verifies a good token but for some changes.
macro_rules! refused {
    ($world:expr, $changes:tt, $kind:pat) => {
        let changes = json!($changes);
        let answer = $world.provider.verify_access(&$world.token(&changes)).await;
        assert!(matches!(answer, Err($kind)), "{changes}: {answer:?}");
    };
}

fn seconds(after_now: i64) -> i64 {
    NOW.as_millis() / 1000 + after_now
}

#[tokio::test]
async fn a_good_token_says_whom_it_speaks_for() {
    let world = World::start().await;
    let access = world.provider.verify_access(&world.token(&json!({}))).await.unwrap();
    assert_eq!(access.issuer, world.double.issuer.as_str());
    assert_eq!(access.subject, "f3a1");
    assert_eq!(access.name.as_deref(), Some("Ada Lovelace"));
    assert_eq!(access.roles, ["player"]);
    assert_eq!(access.client.as_deref(), Some("game-client"));
    assert_eq!(access.sid.as_deref(), Some("session-1"));
    assert_eq!(access.expires_at, Timestamp::from_millis(seconds(300) * 1000));
    assert!(!access.is_operator && !access.is_service && access.rights.is_empty());
}

#[tokio::test]
async fn an_rsa_key_signs_as_well() {
    let signer = Signer::rsa("rsa");
    let double = Double::start(&[&signer, &Signer::ec("ec")]).await;
    let provider = provider(&config(), &double.issuer, &base::Clock::manual(NOW));
    assert!(provider.verify_access(&signer.sign(&double.claims())).await.is_ok());
}

#[tokio::test]
async fn roles_make_operators_and_services() {
    let world = World::start().await;
    let access = async |roles: Value| {
        let token = world.token(&json!({ "realm_access": { "roles": roles } }));
        world.provider.verify_access(&token).await.unwrap()
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
async fn names_and_roles_are_found_where_the_configuration_says() {
    let config = Config {
        roles_claim: "https://games.example.org/roles".to_owned(),
        name_claim: "nickname".to_owned(),
        ..config()
    };
    let world = World::with(&config).await;
    let claims = json!({ "https://games.example.org/roles": ["playhouse-operator"], "nickname": "Countess" });
    let access = world.provider.verify_access(&world.token(&claims)).await.unwrap();
    assert!(access.is_operator);
    assert_eq!(access.name.as_deref(), Some("Countess"));
    let fallback = world.token(&json!({ "preferred_username": "ada" }));
    assert_eq!(world.provider.verify_access(&fallback).await.unwrap().name.as_deref(), Some("ada"));
    assert_eq!(world.provider.verify_access(&world.token(&json!({}))).await.unwrap().name, None);
}

#[tokio::test]
async fn times_are_held_against_the_clock_and_the_skew() {
    let world = World::start().await;
    let good = async |changes: Value| world.provider.verify_access(&world.token(&changes)).await.is_ok();
    assert!(good(json!({ "exp": seconds(-29) })).await);
    refused!(world, { "exp": seconds(-30) }, Refused::Expired);
    refused!(world, { "exp": 0 }, Refused::Expired);
    refused!(world, { "exp": null }, Refused::Malformed);
    refused!(world, { "exp": "tomorrow" }, Refused::Malformed);
    refused!(world, { "exp": -1 }, Refused::Malformed);
    assert!(good(json!({ "nbf": seconds(30) })).await);
    refused!(world, { "nbf": seconds(31) }, Refused::NotYetValid);
    refused!(world, { "iat": seconds(31) }, Refused::NotYetValid);
    assert!(good(json!({ "exp": seconds(10) as f64 + 0.5, "iat": null })).await);
    assert!(good(json!({ "exp": 1e300 })).await);
}

#[tokio::test]
async fn tokens_of_others_and_for_others_are_refused() {
    let world = World::start().await;
    let issuer = world.double.issuer.as_str();
    refused!(world, { "iss": "https://evil.example.org" }, Refused::WrongIssuer);
    refused!(world, { "iss": format!("{issuer}/") }, Refused::WrongIssuer);
    refused!(world, { "iss": [issuer] }, Refused::WrongIssuer);
    refused!(world, { "iss": null }, Refused::WrongIssuer);
    refused!(world, { "aud": "account" }, Refused::WrongAudience);
    refused!(world, { "aud": [] }, Refused::WrongAudience);
    refused!(world, { "aud": null }, Refused::WrongAudience);
    refused!(world, { "aud": { "playhouse": true } }, Refused::Malformed);
    refused!(world, { "sub": null }, Refused::Malformed);
    refused!(world, { "sub": "" }, Refused::Malformed);
    refused!(world, { "sub": 7 }, Refused::Malformed);
    refused!(world, { "sub": "x".repeat(256) }, Refused::Malformed);
    assert!(world.provider.verify_access(&world.token(&json!({ "aud": "playhouse" }))).await.is_ok());
}

#[tokio::test]
async fn other_kinds_of_tokens_open_no_door() {
    let world = World::start().await;
    refused!(world, { "nonce": "n" }, Refused::WrongType);
    refused!(world, { "at_hash": "h" }, Refused::WrongType);
    refused!(world, { "typ": "ID" }, Refused::WrongType);
    refused!(world, { "typ": "Refresh" }, Refused::WrongType);
    refused!(world, { "events": {} }, Refused::WrongType);
    let with_type = async |kind: Value, changes: Value| {
        let header = changed(world.signer.header(), &json!({ "typ": kind }));
        let token = world.signer.sign_with(&header, &changed(world.double.claims(), &changes));
        world.provider.verify_access(&token).await
    };
    for kind in ["at+jwt", "application/at+jwt", "AT+JWT", "jwt"] {
        assert!(with_type(json!(kind), json!({})).await.is_ok(), "{kind}");
    }
    assert!(with_type(Value::Null, json!({})).await.is_ok());
    // Keycloak had nonces in access tokens once, and says what they are.
    assert!(with_type(json!("JWT"), json!({ "typ": "Bearer", "nonce": "n" })).await.is_ok());
    for kind in ["logout+jwt", "dpop+jwt", "x"] {
        assert!(matches!(with_type(json!(kind), json!({})).await, Err(Refused::WrongType)), "{kind}");
    }
}

#[tokio::test]
async fn whoever_does_not_have_the_key_signs_nothing() {
    let world = World::start().await;
    let claims = world.double.claims();
    let refused = async |token: String| world.provider.verify_access(&token).await.unwrap_err();

    let impostor = Signer::ec("one");
    assert!(matches!(refused(impostor.sign(&claims)).await, Refused::BadSignature));

    let good = world.token(&json!({}));
    let (head, signature) = good.rsplit_once('.').unwrap();
    let header = head.split_once('.').unwrap().0;
    let operator = changed(claims.clone(), &json!({ "realm_access": { "roles": ["playhouse-operator"] } }));
    let payload = URL_SAFE_NO_PAD.encode(operator.to_string());
    assert!(matches!(refused(format!("{header}.{payload}.{signature}")).await, Refused::BadSignature));

    let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    bytes[10] ^= 1;
    let tampered = URL_SAFE_NO_PAD.encode(&bytes);
    assert!(matches!(refused(format!("{head}.{tampered}")).await, Refused::BadSignature));
    for odd in ["", "AA", "!", &URL_SAFE_NO_PAD.encode([0; 64])] {
        assert!(matches!(refused(format!("{head}.{odd}")).await, Refused::BadSignature), "{odd}");
    }
}

#[tokio::test]
async fn the_token_does_not_choose_its_algorithm() {
    let signer = Signer::rsa("rsa");
    let double = Double::start(&[&signer]).await;
    let provider = provider(&config(), &double.issuer, &base::Clock::manual(NOW));
    let claims = double.claims();
    let refused = async |token: String| provider.verify_access(&token).await.unwrap_err();

    for none in ["none", "None", "NONE", ""] {
        let header = json!({ "alg": none, "kid": "rsa" });
        let token = format!("{}.", message(&header, &claims));
        assert!(matches!(refused(token).await, Refused::WrongAlgorithm), "{none}");
    }

    // The public key as a shared secret, in every form in which it is passed around.
    let der = rsa_public_der();
    let pem =
        format!("-----BEGIN RSA PUBLIC KEY-----\n{}\n-----END RSA PUBLIC KEY-----\n", STANDARD.encode(&der));
    let modulus = URL_SAFE_NO_PAD.decode(signer.jwk()["n"].as_str().unwrap()).unwrap();
    for secret in [pem.as_bytes(), pem.trim().as_bytes(), &der, &modulus] {
        let message = message(&json!({ "alg": "HS256", "typ": "JWT", "kid": "rsa" }), &claims);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
        assert!(matches!(refused(token).await, Refused::WrongAlgorithm));
    }

    // Accepted algorithms, for a key of another kind or for another use of it.
    for alg in ["ES256", "EdDSA"] {
        let token = signer.sign_with(&json!({ "alg": alg, "kid": "rsa" }), &claims);
        assert!(matches!(refused(token).await, Refused::WrongAlgorithm), "{alg}");
    }
    let token = signer.sign_with(&json!({ "alg": "PS256", "kid": "rsa" }), &claims);
    assert!(matches!(refused(token).await, Refused::BadSignature));
    let token = signer.sign_with(&json!({ "alg": "RS512", "kid": "rsa" }), &claims);
    assert!(matches!(refused(token).await, Refused::WrongAlgorithm), "not in the list");
    assert!(provider.verify_access(&signer.sign(&claims)).await.is_ok());
}

#[tokio::test]
async fn what_is_no_token_is_refused_without_asking_the_issuer() {
    let world = World::start().await;
    let large = world.token(&json!({ "padding": "x".repeat(20_000) }));
    let extension = changed(world.signer.header(), &json!({ "crit": ["b64"], "b64": false }));
    let critical = world.signer.sign_with(&extension, &world.double.claims());
    let four = format!("{}.x", world.token(&json!({})));
    for wrong in ["", ".", "..", "a.b", "a.b.c", "e30.e30.", "ä.ö.ü", &critical, &four] {
        assert!(matches!(world.provider.verify_access(wrong).await, Err(Refused::Malformed)), "{wrong}");
    }
    assert!(matches!(world.provider.verify_access(&large).await, Err(Refused::TooLarge)));
    assert_eq!(world.double.key_requests(), 0);
}

#[tokio::test]
async fn a_token_that_names_no_key_is_taken_if_there_is_no_choice() {
    let (one, other) = (Signer::nameless(), Signer::ec("other"));
    let double = Double::start(&[&one, &other]).await;
    let clock = base::Clock::manual(NOW);
    let provider = provider(&config(), &double.issuer, &clock);
    let token = one.sign(&double.claims());
    assert!(matches!(provider.verify_access(&token).await, Err(Refused::UnknownKey)));
    // Of two keys only one fits the algorithm.
    double.publish(&[&one, &Signer::rsa("rsa")]);
    clock.advance(Duration::from_secs(10));
    assert!(provider.verify_access(&token).await.is_ok());
    // Even an issuer without names can change its key.
    let next = Signer::nameless();
    double.publish(&[&next]);
    clock.advance(Duration::from_secs(10));
    assert!(provider.verify_access(&next.sign(&double.claims())).await.is_ok());
}

#[tokio::test]
async fn a_known_token_is_found_without_waiting_until_it_expires() {
    let world = World::start().await;
    let token = world.token(&json!({}));
    assert!(world.provider.known(&token).is_none());
    let access = world.provider.verify_access(&token).await.unwrap();
    assert_eq!(world.provider.known(&token).as_ref(), Some(&access));
    assert!(world.provider.known(&format!("{token}x")).is_none());
    world.clock.advance(Duration::from_secs(300 + 29));
    assert!(world.provider.known(&token).is_some(), "as long as the token itself is accepted");
    world.clock.advance(Duration::from_secs(1));
    assert!(world.provider.known(&token).is_none());
    assert!(matches!(world.provider.verify_access(&token).await, Err(Refused::Expired)));
}

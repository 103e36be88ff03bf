//! Keys come and go. Strangers do not make us ask for them.

use std::time::Duration;

use oidc::Refused;
use serde_json::json;

use crate::double::{Signer, World};
use crate::{PATIENCE, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_new_key_is_asked_for_once_by_all_who_miss_it() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    assert_eq!(world.double.key_requests(), 1);
    let next = Signer::ec("two");
    world.double.publish(&[&world.signer, &next]);
    world.clock.advance(Duration::from_secs(10));

    // All are under way before the issuer answers.
    let gate = world.double.hold_keys();
    let verifications: Vec<_> = (0..100)
        .map(|number| {
            let mut claims = world.double.claims();
            claims["jti"] = number.into();
            let (provider, token) = (world.provider.clone(), next.sign(&claims));
            tokio::spawn(async move { provider.verify_access(&token).await.map(drop) })
        })
        .collect();
    testkit::eventually("the request", PATIENCE, || async { world.double.key_requests() == 2 }).await;
    gate.add_permits(100);
    for verification in verifications {
        verification.await.unwrap().unwrap();
    }
    assert_eq!(world.double.key_requests(), 2);
    // The old one is still published.
    assert!(world.provider.verify_access(&world.token(&json!({}))).await.is_ok());
}

#[tokio::test]
async fn after_asking_in_vain_there_is_a_pause() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    let (next, made_up) = (Signer::ec("two"), Signer::ec("three"));
    let token = next.sign(&world.double.claims());
    let in_vain = world.provider.verify_access(&made_up.sign(&world.double.claims())).await;
    assert!(matches!(in_vain, Err(Refused::UnknownKey)));
    assert_eq!(world.double.key_requests(), 2);
    world.double.publish(&[&next]);
    world.clock.advance(Duration::from_millis(9_999));
    assert!(matches!(world.provider.verify_access(&token).await, Err(Refused::UnknownKey)));
    assert_eq!(world.double.key_requests(), 2);
    world.clock.advance(Duration::from_millis(1));
    assert!(world.provider.verify_access(&token).await.is_ok());
    assert_eq!(world.double.key_requests(), 3);
}

#[tokio::test]
async fn an_issuer_that_changes_its_keys_again_and_again_is_followed() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    for round in 0..5 {
        let next = Signer::ec(Box::leak(format!("key-{round}").into_boxed_str()));
        world.double.publish(&[&next]);
        assert!(world.provider.verify_access(&next.sign(&world.double.claims())).await.is_ok(), "{round}");
    }
    assert_eq!(world.double.key_requests(), 6);
}

#[tokio::test]
async fn made_up_keys_cause_one_request_at_most() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    world.clock.advance(Duration::from_secs(10));
    for number in 0..1_000 {
        let header = json!({ "alg": "ES256", "typ": "JWT", "kid": format!("made-up-{number}") });
        let token = world.signer.sign_with(&header, &world.double.claims());
        assert!(matches!(world.provider.verify_access(&token).await, Err(Refused::UnknownKey)));
    }
    assert_eq!(world.double.key_requests(), 2);
    assert!(world.provider.verify_access(&world.token(&json!({}))).await.is_ok());
}

#[tokio::test]
async fn a_key_that_is_gone_takes_its_tokens_with_it() {
    let world = World::start().await;
    let token = world.token(&json!({}));
    world.provider.verify_access(&token).await.unwrap();
    let next = Signer::ec("two");
    world.double.publish(&[&next]);
    world.clock.advance(Duration::from_secs(10));
    assert!(world.provider.known(&token).is_some(), "nobody has said anything yet");
    let other = next.sign(&world.double.claims());
    world.provider.verify_access(&other).await.unwrap();
    assert!(world.provider.known(&token).is_none());
    assert!(matches!(world.provider.verify_access(&token).await, Err(Refused::UnknownKey)));
    // The other stays known when keys are asked for and it is among them.
    world.double.publish(&[&world.signer, &next]);
    world.clock.advance(Duration::from_secs(10));
    world.provider.verify_access(&token).await.unwrap();
    assert!(world.provider.known(&other).is_some());
}

#[tokio::test]
async fn another_key_by_the_same_name_takes_the_place_of_the_first() {
    let world = World::start().await;
    let token = world.token(&json!({}));
    world.provider.verify_access(&token).await.unwrap();
    let (usurper, next) = (Signer::ec("one"), Signer::ec("two"));
    world.double.publish(&[&usurper, &next]);
    world.clock.advance(Duration::from_secs(10));
    world.provider.verify_access(&next.sign(&world.double.claims())).await.unwrap();
    assert!(world.provider.known(&token).is_none());
    assert!(world.provider.verify_access(&usurper.sign(&world.double.claims())).await.is_ok());
}

#[tokio::test]
async fn old_keys_are_asked_for_anew_behind_everybodys_back() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    world.clock.advance(config().keys_max_age - Duration::from_secs(1));
    world.provider.ready().await.unwrap();
    assert_eq!(world.double.key_requests(), 1);
    // Nobody waits for the answer.
    let gate = world.double.hold_keys();
    world.clock.advance(Duration::from_secs(1));
    for _ in 0..10 {
        world.provider.ready().await.unwrap();
    }
    testkit::eventually("the request", PATIENCE, || async { world.double.key_requests() == 2 }).await;
    let next = Signer::ec("two");
    world.double.publish(&[&next]);
    gate.add_permits(100);
    testkit::eventually("the new key", PATIENCE, || async {
        world.provider.verify_access(&next.sign(&fresh(&world))).await
    })
    .await;
    assert_eq!(world.double.key_requests(), 2);
}

#[tokio::test]
async fn a_caller_who_leaves_does_not_stop_the_asking() {
    let world = World::start().await;
    world.provider.ready().await.unwrap();
    let next = Signer::ec("two");
    world.double.publish(&[&next]);
    world.clock.advance(Duration::from_secs(10));
    let gate = world.double.hold_keys();
    let (provider, token) = (world.provider.clone(), next.sign(&world.double.claims()));
    let asking = token.clone();
    let caller = tokio::spawn(async move { provider.verify_access(&asking).await.map(drop) });
    testkit::eventually("the request", PATIENCE, || async { world.double.key_requests() == 2 }).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    gate.add_permits(1);
    world.provider.verify_access(&token).await.unwrap();
    assert_eq!(world.double.key_requests(), 2);
}

/// Claims that are good by the clock as it stands now.
fn fresh(world: &World) -> serde_json::Value {
    let now = world.clock.now().as_millis() / 1000;
    let mut claims = world.double.claims();
    claims["iat"] = now.into();
    claims["exp"] = (now + 300).into();
    claims
}

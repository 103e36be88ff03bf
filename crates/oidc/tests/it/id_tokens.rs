//! ID tokens: who has signed in.

use base::Timestamp;
use oidc::{IdToken, Refused};
use serde_json::{Value, json};

use crate::NOW;
use crate::double::{World, changed};

/// A good ID token, but for some changes.
fn token(world: &World, changes: &Value) -> String {
    let claims = changed(
        world.double.claims(),
        &json!({ "aud": "playhouse", "azp": null, "nonce": "once", "auth_time": NOW.as_millis() / 1000 - 5 }),
    );
    world.signer.sign(&changed(claims, changes))
}

async fn verify(world: &World, changes: Value) -> Result<IdToken, Refused> {
    world.provider.verify_id_token(&token(world, &changes), Some("once")).await
}

#[tokio::test]
async fn a_good_token_says_who_it_is() {
    let world = World::start().await;
    let id = verify(&world, json!({})).await.unwrap();
    assert_eq!(id.subject, "f3a1");
    assert_eq!(id.issuer, world.double.issuer.as_str());
    assert_eq!(id.name.as_deref(), Some("Ada Lovelace"));
    assert_eq!(id.sid.as_deref(), Some("session-1"));
    assert_eq!(id.auth_time, Some(Timestamp::from_millis(NOW.as_millis() - 5_000)));
    assert!(verify(&world, json!({ "typ": "ID" })).await.is_ok(), "as Keycloak has it");
}

#[tokio::test]
async fn it_answers_the_sign_in_that_asked() {
    let world = World::start().await;
    for nonce in [json!("other"), json!(""), json!(1), Value::Null] {
        assert!(matches!(verify(&world, json!({ "nonce": nonce })).await, Err(Refused::WrongNonce)));
    }
    // After a refresh there is nothing to answer.
    let refreshed = token(&world, &json!({ "nonce": null }));
    assert!(world.provider.verify_id_token(&refreshed, None).await.is_ok());
}

#[tokio::test]
async fn it_is_for_us_and_given_to_us() {
    let world = World::start().await;
    let good = async |changes| verify(&world, changes).await.is_ok();
    assert!(good(json!({ "aud": ["playhouse"] })).await);
    assert!(good(json!({ "aud": ["playhouse", "other"], "azp": "playhouse" })).await);
    for wrong in [
        json!({ "aud": "other" }),
        json!({ "aud": null }),
        json!({ "aud": ["playhouse", "other"] }),
        json!({ "aud": ["playhouse", "other"], "azp": "other" }),
        json!({ "aud": "playhouse", "azp": "other" }),
        json!({ "aud": ["other"], "azp": "playhouse" }),
    ] {
        assert!(matches!(verify(&world, wrong.clone()).await, Err(Refused::WrongAudience)), "{wrong}");
    }
}

#[tokio::test]
async fn its_other_rules() {
    let world = World::start().await;
    let now = NOW.as_millis() / 1000;
    assert!(matches!(verify(&world, json!({ "exp": now - 30 })).await, Err(Refused::Expired)));
    assert!(matches!(verify(&world, json!({ "exp": null })).await, Err(Refused::Malformed)));
    assert!(matches!(verify(&world, json!({ "iat": null })).await, Err(Refused::Malformed)));
    assert!(matches!(verify(&world, json!({ "iat": now + 31 })).await, Err(Refused::NotYetValid)));
    assert!(matches!(verify(&world, json!({ "sub": null })).await, Err(Refused::Malformed)));
    assert!(matches!(verify(&world, json!({ "iss": "https://evil" })).await, Err(Refused::WrongIssuer)));
    // What else the issuer signs.
    assert!(matches!(verify(&world, json!({ "typ": "Bearer" })).await, Err(Refused::WrongType)));
    assert!(matches!(verify(&world, json!({ "events": {} })).await, Err(Refused::WrongType)));
    let header = changed(world.signer.header(), &json!({ "typ": "at+jwt" }));
    let claims = changed(world.double.claims(), &json!({ "aud": "playhouse", "azp": null, "nonce": "once" }));
    let access = world.signer.sign_with(&header, &claims);
    let answer = world.provider.verify_id_token(&access, Some("once")).await;
    assert!(matches!(answer, Err(Refused::WrongType)));
    // And it opens no door.
    assert!(matches!(
        world.provider.verify_access(&token(&world, &json!({}))).await,
        Err(Refused::WrongType)
    ));
}

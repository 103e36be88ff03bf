//! Logout tokens: whom the issuer wants to be signed out. The rules of OpenID Connect Back-Channel Logout 1.0.

use base::Timestamp;
use oidc::{LogoutToken, Refused};
use serde_json::{Value, json};

use crate::NOW;
use crate::double::{World, changed};

const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

fn claims(world: &World, changes: &Value) -> Value {
    let now = NOW.as_millis() / 1000;
    let claims = json!({
        "iss": world.double.issuer.as_str(),
        "sub": "f3a1",
        "sid": "session-1",
        "aud": "playhouse",
        "iat": now,
        "exp": now + 120,
        "jti": "once",
        "events": { EVENT: {} },
    });
    changed(claims, changes)
}

async fn verify(world: &World, changes: Value) -> Result<LogoutToken, Refused> {
    let header = changed(world.signer.header(), &json!({ "typ": "logout+jwt" }));
    let token = world.signer.sign_with(&header, &claims(world, &changes));
    world.provider.verify_logout_token(&token).await
}

#[tokio::test]
async fn a_good_token_says_whom_to_sign_out() {
    let world = World::start().await;
    let logout = verify(&world, json!({})).await.unwrap();
    assert_eq!(logout.issuer, world.double.issuer.as_str());
    assert_eq!(logout.subject.as_deref(), Some("f3a1"));
    assert_eq!(logout.sid.as_deref(), Some("session-1"));
    assert_eq!(logout.jti, "once");
    assert_eq!(logout.expires_at, Timestamp::from_millis(NOW.as_millis() + 150_000), "with the skew");
    assert_eq!(verify(&world, json!({ "sid": null })).await.unwrap().sid, None);
    assert_eq!(verify(&world, json!({ "sub": null })).await.unwrap().subject, None);
    // Older issuers set no expiry and no type.
    assert_eq!(verify(&world, json!({ "exp": null })).await.unwrap().expires_at, logout.expires_at);
    for kind in [json!("JWT"), Value::Null] {
        let header = changed(world.signer.header(), &json!({ "typ": kind }));
        let token = world.signer.sign_with(&header, &claims(&world, &json!({})));
        assert!(world.provider.verify_logout_token(&token).await.is_ok(), "{kind}");
    }
}

#[tokio::test]
async fn each_rule_is_held() {
    let world = World::start().await;
    let now = NOW.as_millis() / 1000;
    let kind = async |changes: Value| verify(&world, changes).await.unwrap_err();
    for wrong in [
        json!({ "events": null }),
        json!({ "events": {} }),
        json!({ "events": [EVENT] }),
        json!({ "events": { EVENT: true } }),
        json!({ "events": { "http://schemas.openid.net/event/other": {} } }),
        json!({ "nonce": "n" }),
    ] {
        assert!(matches!(kind(wrong.clone()).await, Refused::WrongType), "{wrong}");
    }
    for wrong in [
        json!({ "iat": null }),
        json!({ "jti": null }),
        json!({ "jti": 1 }),
        json!({ "sub": null, "sid": null }),
        json!({ "exp": "soon" }),
    ] {
        assert!(matches!(kind(wrong.clone()).await, Refused::Malformed), "{wrong}");
    }
    assert!(matches!(kind(json!({ "iss": "https://evil" })).await, Refused::WrongIssuer));
    assert!(matches!(kind(json!({ "aud": "other" })).await, Refused::WrongAudience));
    assert!(matches!(kind(json!({ "exp": now - 30 })).await, Refused::Expired));
    assert!(matches!(kind(json!({ "iat": now - 150, "exp": null })).await, Refused::Expired));
    assert!(matches!(kind(json!({ "iat": now + 31 })).await, Refused::NotYetValid));
}

#[tokio::test]
async fn other_kinds_of_tokens_sign_nobody_out() {
    let world = World::start().await;
    for kind in ["at+jwt", "secevent+jwt"] {
        let header = changed(world.signer.header(), &json!({ "typ": kind }));
        let token = world.signer.sign_with(&header, &claims(&world, &json!({})));
        let answer = world.provider.verify_logout_token(&token).await;
        assert!(matches!(answer, Err(Refused::WrongType)), "{kind}");
    }
    let access = world.token(&json!({}));
    assert!(matches!(world.provider.verify_logout_token(&access).await, Err(Refused::WrongType)));
}

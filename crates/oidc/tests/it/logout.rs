//! Logout tokens (OpenID Connect Back-Channel Logout 1.0).

use base::Timestamp;
use oidc::{LogoutToken, TokenError};
use serde_json::{Value, json};

use crate::NOW;
use crate::fake_issuer::{Fixture, changed};

const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

fn claims(fixture: &Fixture, changes: &Value) -> Value {
    let now = NOW.as_millis() / 1000;
    let claims = json!({
        "iss": fixture.fake.issuer.as_str(),
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

async fn verify(fixture: &Fixture, changes: Value) -> Result<LogoutToken, TokenError> {
    let header = changed(fixture.signer.header(), &json!({ "typ": "logout+jwt" }));
    let token = fixture.signer.sign_with(&header, &claims(fixture, &changes));
    fixture.provider.verify_logout_token(&token).await
}

#[tokio::test]
async fn valid_token_yields_session_and_user() {
    let fixture = Fixture::start().await;
    let logout = verify(&fixture, json!({})).await.unwrap();
    assert_eq!(logout.issuer, fixture.fake.issuer.as_str());
    assert_eq!(logout.subject.as_deref(), Some("f3a1"));
    assert_eq!(logout.sid.as_deref(), Some("session-1"));
    assert_eq!(logout.jti, "once");
    assert_eq!(logout.expires_at, Timestamp::from_millis(NOW.as_millis() + 150_000), "with the skew");
    assert_eq!(verify(&fixture, json!({ "sid": null })).await.unwrap().sid, None);
    assert_eq!(verify(&fixture, json!({ "sub": null })).await.unwrap().subject, None);
    // Older issuers set neither expiry nor type.
    assert_eq!(verify(&fixture, json!({ "exp": null })).await.unwrap().expires_at, logout.expires_at);
    for kind in [json!("JWT"), Value::Null] {
        let header = changed(fixture.signer.header(), &json!({ "typ": kind }));
        let token = fixture.signer.sign_with(&header, &claims(&fixture, &json!({})));
        assert!(fixture.provider.verify_logout_token(&token).await.is_ok(), "{kind}");
    }
}

#[tokio::test]
async fn invalid_tokens_are_refused() {
    let fixture = Fixture::start().await;
    let now = NOW.as_millis() / 1000;
    let error = async |changes: Value| verify(&fixture, changes).await.unwrap_err();
    for wrong in [
        json!({ "events": null }),
        json!({ "events": {} }),
        json!({ "events": [EVENT] }),
        json!({ "events": { EVENT: true } }),
        json!({ "events": { "http://schemas.openid.net/event/other": {} } }),
        json!({ "nonce": "n" }),
    ] {
        assert!(matches!(error(wrong.clone()).await, TokenError::WrongType), "{wrong}");
    }
    for wrong in [
        json!({ "iat": null }),
        json!({ "jti": null }),
        json!({ "jti": 1 }),
        json!({ "sub": null, "sid": null }),
        json!({ "exp": "soon" }),
    ] {
        assert!(matches!(error(wrong.clone()).await, TokenError::Malformed), "{wrong}");
    }
    assert!(matches!(error(json!({ "iss": "https://evil" })).await, TokenError::WrongIssuer));
    assert!(matches!(error(json!({ "aud": "other" })).await, TokenError::WrongAudience));
    assert!(matches!(error(json!({ "exp": now - 30 })).await, TokenError::Expired));
    assert!(matches!(error(json!({ "iat": now - 150, "exp": null })).await, TokenError::Expired));
    assert!(matches!(error(json!({ "iat": now + 31 })).await, TokenError::NotYetValid));
}

#[tokio::test]
async fn other_kinds_of_tokens_are_not_logout_tokens() {
    let fixture = Fixture::start().await;
    for kind in ["at+jwt", "secevent+jwt"] {
        let header = changed(fixture.signer.header(), &json!({ "typ": kind }));
        let token = fixture.signer.sign_with(&header, &claims(&fixture, &json!({})));
        let result = fixture.provider.verify_logout_token(&token).await;
        assert!(matches!(result, Err(TokenError::WrongType)), "{kind}");
    }
    let access = fixture.token(&json!({}));
    assert!(matches!(fixture.provider.verify_logout_token(&access).await, Err(TokenError::WrongType)));
}

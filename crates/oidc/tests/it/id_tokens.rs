//! ID tokens.

use base::Timestamp;
use oidc::{IdToken, TokenError};
use serde_json::{Value, json};

use crate::NOW;
use crate::fake_issuer::{Fixture, changed};

/// Returns a valid ID token with some changes.
fn token(fixture: &Fixture, changes: &Value) -> String {
    let claims = changed(
        fixture.fake.claims(),
        &json!({ "aud": "playhouse", "azp": null, "nonce": "once", "auth_time": NOW.as_millis() / 1000 - 5 }),
    );
    fixture.signer.sign(&changed(claims, changes))
}

async fn verify(fixture: &Fixture, changes: Value) -> Result<IdToken, TokenError> {
    fixture.provider.verify_id_token(&token(fixture, &changes), Some("once")).await
}

#[tokio::test]
async fn valid_token_yields_the_user() {
    let fixture = Fixture::start().await;
    let id = verify(&fixture, json!({})).await.unwrap();
    assert_eq!(id.subject, "f3a1");
    assert_eq!(id.issuer, fixture.fake.issuer.as_str());
    assert_eq!(id.name.as_deref(), Some("Ada Lovelace"));
    assert_eq!(id.sid.as_deref(), Some("session-1"));
    assert_eq!(id.auth_time, Some(Timestamp::from_millis(NOW.as_millis() - 5_000)));
    assert!(verify(&fixture, json!({ "typ": "ID" })).await.is_ok(), "as Keycloak sends it");
}

#[tokio::test]
async fn nonce_must_match_the_sign_in() {
    let fixture = Fixture::start().await;
    for nonce in [json!("other"), json!(""), json!(1), Value::Null] {
        assert!(matches!(verify(&fixture, json!({ "nonce": nonce })).await, Err(TokenError::WrongNonce)));
    }
    // A refreshed ID token has no nonce.
    let refreshed = token(&fixture, &json!({ "nonce": null }));
    assert!(fixture.provider.verify_id_token(&refreshed, None).await.is_ok());
}

#[tokio::test]
async fn audience_and_authorized_party_must_be_our_client() {
    let fixture = Fixture::start().await;
    let is_valid = async |changes| verify(&fixture, changes).await.is_ok();
    assert!(is_valid(json!({ "aud": ["playhouse"] })).await);
    assert!(is_valid(json!({ "aud": ["playhouse", "other"], "azp": "playhouse" })).await);
    for wrong in [
        json!({ "aud": "other" }),
        json!({ "aud": null }),
        json!({ "aud": ["playhouse", "other"] }),
        json!({ "aud": ["playhouse", "other"], "azp": "other" }),
        json!({ "aud": "playhouse", "azp": "other" }),
        json!({ "aud": ["other"], "azp": "playhouse" }),
    ] {
        assert!(matches!(verify(&fixture, wrong.clone()).await, Err(TokenError::WrongAudience)), "{wrong}");
    }
}

#[tokio::test]
async fn times_issuer_subject_and_type_are_checked() {
    let fixture = Fixture::start().await;
    let now = NOW.as_millis() / 1000;
    assert!(matches!(verify(&fixture, json!({ "exp": now - 30 })).await, Err(TokenError::Expired)));
    assert!(matches!(verify(&fixture, json!({ "exp": null })).await, Err(TokenError::Malformed)));
    assert!(matches!(verify(&fixture, json!({ "iat": null })).await, Err(TokenError::Malformed)));
    assert!(matches!(verify(&fixture, json!({ "iat": now + 31 })).await, Err(TokenError::NotYetValid)));
    assert!(matches!(verify(&fixture, json!({ "sub": null })).await, Err(TokenError::Malformed)));
    assert!(matches!(verify(&fixture, json!({ "iss": "https://evil" })).await, Err(TokenError::WrongIssuer)));
    // Other tokens of the issuer are refused.
    assert!(matches!(verify(&fixture, json!({ "typ": "Bearer" })).await, Err(TokenError::WrongType)));
    assert!(matches!(verify(&fixture, json!({ "events": {} })).await, Err(TokenError::WrongType)));
    let header = changed(fixture.signer.header(), &json!({ "typ": "at+jwt" }));
    let claims = changed(fixture.fake.claims(), &json!({ "aud": "playhouse", "azp": null, "nonce": "once" }));
    let access = fixture.signer.sign_with(&header, &claims);
    let result = fixture.provider.verify_id_token(&access, Some("once")).await;
    assert!(matches!(result, Err(TokenError::WrongType)));
    // An ID token is not accepted as an access token.
    assert!(matches!(
        fixture.provider.verify_access(&token(&fixture, &json!({}))).await,
        Err(TokenError::WrongType)
    ));
}

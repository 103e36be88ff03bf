//! The realm, checked with a test client in place of the gateway.

use testkit::eventually;

use super::test_client::{TestClient, refresh, sign_in, sign_in_url, wait_for_callback};
use super::*;

pub(super) async fn meets_the_requirements(keycloak: &Keycloak, browser: &Browser) {
    let client = TestClient::serve().await;
    keycloak.set_gateway_url(&client.url).await;

    // Discovery.
    let url = format!("{}/.well-known/openid-configuration", keycloak.issuer());
    let discovery: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
    assert_eq!(discovery["issuer"], keycloak.issuer());
    assert_eq!(discovery["backchannel_logout_session_supported"], true);

    // Users sign in, with PKCE only.
    browser.goto(sign_in_url(keycloak, &client, false)).await;
    assert_eq!(wait_for_callback(browser, &client).await["error"], "invalid_request");
    let tokens = sign_in(browser, keycloak, &client, "root-eve", Keycloak::PASSWORD).await;
    let (access, identity) = (part(&tokens["access_token"], 1), part(&tokens["id_token"], 1));
    assert_eq!((&access["aud"], &access["iss"]), (&json!("playhouse"), &json!(keycloak.issuer())));
    assert_eq!((&identity["aud"], &identity["nonce"]), (&json!("playhouse"), &json!("n1")));
    assert_eq!((&identity["name"], &access["name"]), (&json!("Eve Example"), &json!("Eve Example")));
    assert!(has_role(&access, "playhouse-operator") && has_role(&identity, "playhouse-operator"));
    assert_eq!(access["sid"], identity["sid"]);

    // Refresh tokens rotate: a reused one ends the session.
    let (status, fresh) = refresh(keycloak, &tokens).await;
    assert_eq!(status, 200, "{fresh}");
    assert_eq!(refresh(keycloak, &tokens).await.1["error"], "invalid_grant");

    // Services.
    let claims = part(&service_token(keycloak).await, 1);
    assert_eq!(claims["aud"], "playhouse");
    for role in ["playhouse-service", "playhouse-may-read", "playhouse-may-entitlements"] {
        assert!(has_role(&claims, role), "{claims}");
    }
    assert!(!has_role(&claims, "playhouse-may-operator"));

    // A new user signs in, and an administrator ends the session.
    let carol = keycloak.create_user("carol", "a password", &["playhouse-operator"]).await;
    let tokens = sign_in(browser, keycloak, &client, "carol", "a password").await;
    let (access, identity) = (part(&tokens["access_token"], 1), part(&tokens["id_token"], 1));
    assert_eq!(access["sub"], carol);
    assert!(has_role(&access, "playhouse-operator"));
    assert_eq!(keycloak.sessions_of("carol").await, 1);
    client.logouts.lock().unwrap().clear();
    keycloak.log_out("carol").await;
    let received =
        eventually("a back-channel logout", DEADLINE, || async { client.logouts.lock().unwrap().pop() })
            .await;
    let logout = json!(received.strip_prefix("logout_token=").unwrap());
    assert_eq!(part(&logout, 1)["sid"], identity["sid"]);
    assert_eq!(keycloak.sessions_of("carol").await, 0);

    // After a key rotation the old key stays published until it is retired.
    let signer = async || part(&service_token(keycloak).await, 0)["kid"].clone();
    let old = signer().await;
    keycloak.rotate_keys().await;
    let new = signer().await;
    assert_ne!(new, old);
    assert_eq!(published(&discovery, &[&new, &old]).await, [true, true]);
    keycloak.retire_keys().await;
    assert_eq!(published(&discovery, &[&new, &old]).await, [true, false]);
}

async fn published(discovery: &Value, wanted: &[&Value]) -> Vec<bool> {
    let keys: Value = reqwest::get(text(&discovery["jwks_uri"])).await.unwrap().json().await.unwrap();
    let keys = keys["keys"].as_array().unwrap();
    wanted.iter().map(|wanted| keys.iter().any(|key| key["kid"] == **wanted)).collect()
}

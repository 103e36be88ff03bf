//! Sign-in at a third-party issuer.

use testkit::{ClientUris, Folder, OidcClients, OidcProvider, eventually, need};

use super::*;

/// The lifetime of access tokens: short, so that sessions are refreshed during the test.
const ACCESS: Duration = Duration::from_secs(3);

async fn sign_in(browser: &Browser, gateway: &str, name: &str) {
    browser.goto(format!("{gateway}/login")).await;
    browser.fill("[name=login]", name).await;
    browser.click("[name=go]").await;
    signed_in_as(browser, &format!("Player {name}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_refresh_and_sign_out_work_with_a_certified_provider() {
    let browser = need!(Browser::start().await);
    let clients = OidcClients { access_token_life: ACCESS, ..OidcClients::default() };
    let provider = need!(OidcProvider::start(clients.clone()).await);
    let folder = Folder::fresh().unwrap();
    let any_port =
        ["gateway", "service_api", "admin", "open_match"].map(|name| format!("listen.{name}=127.0.0.1:0"));
    let any_port = any_port.iter().flat_map(|set| ["--set", set.as_str()]);
    let program = playhouse(&["serve", "--print-addresses"])
        .args(any_port)
        .env("PLAYHOUSE_DB_URL", format!("sqlite:{}", folder.path().join("play.db").display()))
        .env("PLAYHOUSE_DB_MIGRATE", "true")
        .env("PLAYHOUSE_IDENTITY_ISSUER", provider.issuer())
        .env("PLAYHOUSE_IDENTITY_CLIENT_SECRET", &clients.client_secret);
    let (_running, addresses) = started(program).await;
    let gateway = format!("http://{}", addresses["gateway"]);
    provider.set_uris(&ClientUris::at(&gateway)).await;

    // The roles of the signed-in user come from the issuer.
    sign_in(&browser, &gateway, "root-eve").await;
    let (_, me) = fetch(&browser, "GET", "/v1/me", "{}").await;
    assert_eq!(me["roles"], serde_json::json!(["player", "operator"]), "{me}");

    // The session is refreshed without any action of the player.
    for round in 1..=2 {
        eventually("a refresh", PATIENCE, async || {
            let (status, me) = fetch(&browser, "GET", "/v1/me", "{}").await;
            assert_eq!(status, 200, "{me}");
            (provider.refreshes().await >= round).then_some(())
        })
        .await;
    }
    assert_eq!(provider.refused_refreshes().await, 0);

    // After a key rotation the next refresh returns tokens signed with the new key.
    provider.rotate_keys().await;
    let before = provider.refreshes().await;
    eventually("a refresh with the new key", PATIENCE, async || {
        assert_eq!(fetch(&browser, "GET", "/v1/me", "{}").await.0, 200);
        (provider.refreshes().await > before).then_some(())
    })
    .await;

    // Signing out ends the session here and at the provider: the next sign-in asks for a name again.
    browser.goto(&gateway).await;
    signed_in_as(&browser, "Player root-eve").await;
    browser.click("#logout").await;
    eventually("signed out at the provider", PATIENCE, async || {
        if browser.has("[name=logout], button[value=yes]").await {
            browser.click("[name=logout], button[value=yes]").await;
        }
        browser.url().await.starts_with(&gateway).then_some(())
    })
    .await;
    browser.wait_for("#signed-out:not([hidden])", PATIENCE).await;

    // A back-channel logout by the issuer ends the session before the issuer gets its response.
    sign_in(&browser, &gateway, "bob").await;
    assert_eq!(provider.end_sessions_of("bob").await, 1);
    let (status, _) = fetch(&browser, "GET", "/v1/me", "{}").await;
    assert_eq!(status, 401, "the issuer got its response, so the session has ended");

    // The player cancels at the provider.
    browser.delete_all_cookies().await;
    browser.goto(format!("{gateway}/login")).await;
    browser.click("[name=cancel]").await;
    browser.wait_for_text("h1", "You did not sign in", PATIENCE).await;

    // The sign-in page loads while the provider fails.
    provider.set_failing(true).await;
    browser.goto(format!("{gateway}/login")).await;
    provider.set_failing(false).await;
}

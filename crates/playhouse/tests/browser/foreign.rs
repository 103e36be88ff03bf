//! Against an issuer that nobody here wrote.

use testkit::{Clients, Folder, OidcProvider, Uris, eventually, need};

use super::*;

/// How long access tokens live here: short, so that sessions are refreshed while we look.
const ACCESS: Duration = Duration::from_secs(3);

async fn sign_in(browser: &Browser, gateway: &str, name: &str) {
    browser.goto(format!("{gateway}/login")).await;
    browser.fill("[name=login]", name).await;
    browser.click("[name=go]").await;
    signed_in_as(browser, &format!("Player {name}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certified_provider_signs_in_refreshes_and_signs_out() {
    let browser = need!(Browser::start().await);
    let clients = Clients { access_token_life: ACCESS, ..Clients::default() };
    let provider = need!(OidcProvider::start(clients.clone()).await);
    let folder = Folder::fresh().unwrap();
    let any_port =
        ["gateway", "internal", "admin", "open_match"].map(|name| format!("listen.{name}=127.0.0.1:0"));
    let any_port = any_port.iter().flat_map(|set| ["--set", set.as_str()]);
    let program = playhouse(&["serve", "--print-addresses"])
        .args(any_port)
        .env("PLAYHOUSE_DB_URL", format!("sqlite:{}", folder.path().join("play.db").display()))
        .env("PLAYHOUSE_DB_MIGRATE", "true")
        .env("PLAYHOUSE_IDENTITY_ISSUER", provider.issuer())
        .env("PLAYHOUSE_IDENTITY_CLIENT_SECRET", &clients.client_secret);
    let (_running, addresses) = started(program).await;
    let gateway = format!("http://{}", addresses["gateway"]);
    provider.set_uris(&Uris::at(&gateway)).await;

    // Sign in; roles come from the issuer.
    sign_in(&browser, &gateway, "root-eve").await;
    let (_, me) = fetched(&browser, "GET", "/v1/me", "{}").await;
    assert_eq!(me["roles"], serde_json::json!(["player", "operator"]), "{me}");

    // The session is refreshed by itself, and the player notices nothing.
    for round in 1..=2 {
        eventually("a refresh", PATIENCE, async || {
            let (status, me) = fetched(&browser, "GET", "/v1/me", "{}").await;
            assert_eq!(status, 200, "{me}");
            (provider.refreshes().await >= round).then_some(())
        })
        .await;
    }
    assert_eq!(provider.refused_refreshes().await, 0);

    // Keys rotate: the next refresh brings tokens with the new one.
    provider.rotate_keys().await;
    let before = provider.refreshes().await;
    eventually("a refresh with the new key", PATIENCE, async || {
        assert_eq!(fetched(&browser, "GET", "/v1/me", "{}").await.0, 200);
        (provider.refreshes().await > before).then_some(())
    })
    .await;

    // Out, here and there: the next sign-in is asked for a name again.
    browser.goto(&gateway).await;
    signed_in_as(&browser, "Player root-eve").await;
    browser.click("#logout").await;
    eventually("out at the provider", PATIENCE, async || {
        if browser.has("[name=logout], button[value=yes]").await {
            browser.click("[name=logout], button[value=yes]").await;
        }
        browser.url().await.starts_with(&gateway).then_some(())
    })
    .await;
    browser.wait_for("#nobody:not([hidden])", PATIENCE).await;

    // The issuer ends a session: the player is out within a second.
    sign_in(&browser, &gateway, "bob").await;
    assert_eq!(provider.end_sessions_of("bob").await, 1);
    let (status, _) = fetched(&browser, "GET", "/v1/me", "{}").await;
    assert_eq!(status, 401, "the issuer had its answer, so the session has ended");

    // Cancelled at the provider.
    browser.delete_all_cookies().await;
    browser.goto(format!("{gateway}/login")).await;
    browser.click("[name=cancel]").await;
    browser.wait_for_text("h1", "You did not sign in", PATIENCE).await;

    // The provider is away: a page that says so.
    provider.fail(true).await;
    browser.goto(format!("{gateway}/login")).await;
    provider.fail(false).await;
}

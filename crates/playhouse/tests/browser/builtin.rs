//! Sign-in at the builtin issuer, as a newcomer sees it in `playhouse dev`.

use testkit::{TlsProxy, need};

use super::*;

/// Whether the button is visible, whatever its attributes say.
const CAN_CANCEL: &str = "return document.getElementById('cancel').checkVisibility()";

#[tokio::test(flavor = "multi_thread")]
async fn newcomer_signs_in_finds_a_match_and_signs_out() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let (_running, addresses) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", addresses["gateway"]);
    for (browser, user) in [(&browser, "ada"), (&other, "grace")] {
        browser.goto(&gateway).await;
        browser.wait_for("#signed-out:not([hidden])", PATIENCE).await;
        browser.click("a[href='/login']").await;
        browser.wait_for_url(|url| url.contains("/issuer/authorize"), PATIENCE).await;
        browser.click(&format!("button[value={user}]")).await;
    }
    signed_in_as(&browser, "Ada Lovelace").await;
    signed_in_as(&other, "Grace Hopper").await;
    let url = browser.url().await;
    assert_eq!(url, format!("{gateway}/"), "neither the code nor the state stays in the address");

    // The browser has one session cookie, and scripts cannot read it.
    let cookies = browser.cookies().await;
    let session = cookies.iter().find(|cookie| cookie.name == "playhouse").unwrap();
    assert!(session.http_only && !session.secure && session.same_site == "Lax", "{session:?}");
    assert_eq!(cookies.len(), 1, "the cookie of the sign-in attempt is removed: {cookies:?}");
    assert_eq!(browser.script("return document.cookie").await, "");
    let (status, me) = fetch(&browser, "GET", "/v1/me", "{}").await;
    assert_eq!((status, &me["display_name"]), (200, &"Ada Lovelace".into()));
    assert!(!me.to_string().contains("eyJ"), "no token reaches the browser: {me}");

    // Both players join the queue and are matched.
    browser.click("#play").await;
    browser.wait_for_text("#match", "Waiting", PATIENCE).await;
    other.click("#play").await;
    for browser in [&browser, &other] {
        let text = browser.wait_for_text("#match", "Match found", PATIENCE).await;
        assert!(text.contains("http://127.0.0.1:"), "the address of the game server: {text}");
        assert_eq!(browser.script(CAN_CANCEL).await, false, "a match cannot be cancelled");
    }

    // One of them joins again and cancels.
    browser.click("#play").await;
    browser.wait_for_text("#match", "Waiting", PATIENCE).await;
    assert_eq!(browser.script(CAN_CANCEL).await, true);
    browser.click("#cancel").await;
    browser.wait_for_text("#match", "no longer waiting", PATIENCE).await;
    assert_eq!(browser.script(CAN_CANCEL).await, false);

    // Signing out ends the session here and at the issuer.
    let cookie = session.value.clone();
    browser.click("#logout").await;
    browser.wait_for("#signed-out:not([hidden])", PATIENCE).await;
    assert_eq!(browser.cookies().await.iter().filter(|cookie| cookie.name == "playhouse").count(), 0);
    let request = reqwest::Client::new()
        .get(format!("{gateway}/v1/me"))
        .header("cookie", format!("playhouse={cookie}"));
    assert_eq!(request.send().await.unwrap().status(), 401, "the session has ended, not only the cookie");
    signed_in_as(&other, "Grace Hopper").await;

    for browser in [&browser, &other] {
        let errors = browser.console_errors().await;
        let unexpected: Vec<&String> = errors.iter().filter(|error| !error.contains("401")).collect();
        assert!(unexpected.is_empty(), "{unexpected:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_cookie_is_bound_to_its_host_over_tls() {
    let browser = need!(Browser::builder().accept_any_certificate().start().await);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let public = format!("https://localhost:{port}");
    let set = format!("gateway.public_url={public}");
    let (_running, addresses) = started(dev(&["--gateway-port", "0", "--set", &set])).await;
    let proxy = need!(TlsProxy::at(port, addresses["gateway"].parse().unwrap()).await);
    assert_eq!(proxy.url().trim_end_matches('/'), public);

    browser.goto(format!("{public}/login?return_to=/docs")).await;
    browser.click("button[value=alan]").await;
    browser.wait_for_url(|url| url == format!("{public}/docs"), PATIENCE).await;
    let cookies = browser.cookies().await;
    let session = cookies.iter().find(|cookie| cookie.name == "__Host-Http-playhouse").unwrap();
    assert!(session.http_only && session.secure && session.path == "/", "{session:?}");

    // A change needs the CSRF header, also from our own pages.
    let (status, problem) = fetch(&browser, "DELETE", "/v1/matchmaking/tickets/x", "{}").await;
    assert_eq!(status, 403, "{problem}");
    let headers = "{'x-playhouse-csrf': '1'}";
    assert_eq!(fetch(&browser, "DELETE", "/v1/matchmaking/tickets/x", headers).await.0, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_sign_in_shows_a_page_that_says_why() {
    let browser = need!(Browser::start().await);
    let (_running, addresses) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", addresses["gateway"]);
    // A callback without a sign-in that started here.
    browser.goto(format!("{gateway}/login/callback?code=x&state=y")).await;
    assert_eq!(browser.title().await, "This sign-in did not start here");
    assert!(browser.text("main").await.contains("For support: request "));
    browser.click("a[href='/login']").await;
    browser.wait_for_url(|url| url.contains("/issuer/authorize"), PATIENCE).await;
    // A sign-in that started here and that the issuer answers with an error.
    let url = reqwest::Url::parse(&browser.url().await).unwrap();
    let state = url.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned();
    let issuer = format!("{gateway}/issuer");
    let iss = issuer.replace(':', "%3A").replace('/', "%2F");
    browser.goto(format!("{gateway}/login/callback?error=access_denied&state={state}&iss={iss}")).await;
    assert_eq!(browser.title().await, "You did not sign in");
    // A sign-in can be completed only once.
    browser.goto(format!("{gateway}/login/callback?code=x&state={state}&iss={iss}")).await;
    assert_eq!(browser.title().await, "This sign-in did not start here");
    // A banned player sees the reason.
    let service = addresses["service_token"].clone();
    let api = format!("http://{}/internal/v1", addresses["service_api"]);
    let client = reqwest::Client::new();
    let sign_in = serde_json::json!({ "issuer": issuer, "subject": "grace" });
    let signed_in =
        client.post(format!("{api}/sign-ins")).bearer_auth(&service).json(&sign_in).send().await.unwrap();
    let user = signed_in.json::<Value>().await.unwrap()["user"]["user_id"].as_str().unwrap().to_owned();
    let ban = serde_json::json!({ "reason": "Cheating <b>again</b>" });
    let banned =
        client.post(format!("{api}/users/{user}/ban")).bearer_auth(&service).json(&ban).send().await.unwrap();
    assert_eq!(banned.status(), 204);
    browser.goto(format!("{gateway}/login")).await;
    browser.click("button[value=grace]").await;
    browser.wait_for_text("main", "Cheating <b>again</b>", PATIENCE).await;
    assert_eq!(browser.title().await, "This account is banned");
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_that_starts_at_another_host_name_of_this_machine_works() {
    let browser = need!(Browser::start().await);
    let (_running, addresses) = started(dev(&["--gateway-port", "0"])).await;
    let port = addresses["gateway"].split(':').next_back().unwrap();
    browser.goto(format!("http://localhost:{port}/login")).await;
    browser.click("button[value=ada]").await;
    signed_in_as(&browser, "Ada Lovelace").await;
    assert_eq!(browser.url().await, format!("http://127.0.0.1:{port}/"));
}

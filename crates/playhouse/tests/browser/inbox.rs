//! The inbox on the first page.

use reqwest::Client;
use serde_json::json;
use testkit::need;

use super::*;

const UNREAD: &str = "#notifications li.unread";

/// A service that tells the player things.
struct Service {
    api: String,
    token: String,
    user: String,
    account: String,
}

impl Service {
    /// For whoever is signed in.
    async fn of(browser: &Browser, addresses: &HashMap<String, String>) -> Self {
        let (_, me) = fetched(browser, "GET", "/v1/me", "{}").await;
        Self {
            api: format!("http://{}/internal/v1", addresses["internal"]),
            token: addresses["service_token"].clone(),
            user: me["user_id"].as_str().unwrap().to_owned(),
            account: me["accounts"][0]["account_id"].as_str().unwrap().to_owned(),
        }
    }

    async fn post(&self, path: &str, key: &str, body: &Value) {
        let request = Client::new().post(format!("{}{path}", self.api)).bearer_auth(&self.token).json(body);
        let answer = request.header("idempotency-key", key).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    }

    async fn grant(&self, resource: &str) {
        let body = json!({
            "user_id": self.user, "account_id": self.account, "resource": resource, "quantity": 1,
            "occurred_at": "2026-03-01T12:00:00Z",
        });
        self.post("/entitlements/grant", resource, &body).await;
    }

    async fn say(&self, title: &str) {
        let body = json!({ "to": { "user_id": self.user }, "texts": { "en": { "title": title } } });
        self.post("/notifications", &title.replace(' ', "-"), &body).await;
    }
}

async fn sign_in(browser: &Browser, gateway: &str) {
    browser.goto(format!("{gateway}/login")).await;
    browser.click("button[value=ada]").await;
    signed_in_as(browser, "Ada Lovelace").await;
}

/// Waits until so many are unread, by the page's badge and by its rows.
async fn unread(browser: &Browser, count: usize) {
    testkit::eventually(&format!("{count} unread"), PATIENCE, async || {
        let js = format!(
            "const badge = document.getElementById('unread'); \
             return [badge.hidden ? '' : badge.textContent, document.querySelectorAll('{UNREAD}').length, document.title]"
        );
        let seen = browser.script(&js).await;
        let expected = match count {
            0 => json!(["", 0, "Playhouse"]),
            _ => json!([format!("{count} unread"), count, format!("({count}) Playhouse")]),
        };
        if seen == expected { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_player_is_told_appears_by_itself_and_what_they_did_with_it_stays() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let (_running, addresses) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", addresses["gateway"]);
    sign_in(&browser, &gateway).await;
    sign_in(&other, &gateway).await;
    let service = Service::of(&browser, &addresses).await;
    unread(&browser, 0).await;
    assert!(browser.text("#inbox").await.contains("Nothing yet."));

    // On both devices, without a reload.
    browser.script("window.isTheSamePage = true").await;
    service.grant("sword").await;
    browser.wait_for_text("#toasts", "You received sword", PATIENCE).await;
    for browser in [&browser, &other] {
        browser.wait_for_text("#notifications", "You received sword", PATIENCE).await;
        unread(browser, 1).await;
    }
    browser.wait_for_text("#owned", "sword", PATIENCE).await;
    assert_eq!(browser.script("return window.isTheSamePage").await, true);

    // What is read here is read there, and stays so.
    service.say("Maintenance tonight").await;
    unread(&other, 2).await;
    browser.wait_for_text("#notifications li:first-child", "Maintenance tonight", PATIENCE).await;
    browser.click("#notifications li:last-child button[aria-label^='Mark read']").await;
    for browser in [&browser, &other] {
        unread(browser, 1).await;
        browser.wait_for_text(UNREAD, "Maintenance tonight", PATIENCE).await;
    }
    browser.reload().await;
    unread(&browser, 1).await;
    assert!(browser.text(UNREAD).await.contains("Maintenance tonight"));

    // What comes after a reload is heard of, and all of it is read at once.
    service.say("It is over").await;
    unread(&browser, 2).await;
    browser.click("#read-all").await;
    for browser in [&browser, &other] {
        unread(browser, 0).await;
    }
    browser.click("#notifications li:first-child button[aria-label^='Archive']").await;
    for browser in [&browser, &other] {
        browser.wait_for_text("#notifications li:first-child", "Maintenance tonight", PATIENCE).await;
    }
    browser.reload().await;
    browser.wait_for_text("#notifications li:first-child", "Maintenance tonight", PATIENCE).await;
    unread(&browser, 0).await;
    assert!(!browser.text("#notifications").await.contains("It is over"));

    for browser in [&browser, &other] {
        let errors = browser.console_errors().await;
        let unexpected: Vec<&String> = errors.iter().filter(|error| !error.contains("401")).collect();
        assert!(unexpected.is_empty(), "{unexpected:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_whose_session_is_gone_says_so() {
    let browser = need!(Browser::start().await);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (running, addresses) = started(dev(&["--gateway-port", &port])).await;
    sign_in(&browser, &format!("http://{}", addresses["gateway"])).await;
    drop(running);
    // Sessions of this one are its own.
    let (_running, _) = started(dev(&["--gateway-port", &port])).await;
    browser.wait_for_text("#trouble", "You are signed out", PATIENCE).await;
}

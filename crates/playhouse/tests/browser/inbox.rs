//! The inbox on the start page.

use reqwest::Client;
use serde_json::json;
use testkit::need;

use super::*;

const UNREAD: &str = "#notifications li.unread";

/// A service that grants entitlements to one player and notifies them.
struct Service {
    api: String,
    token: String,
    user: String,
    account: String,
}

impl Service {
    /// Returns a service for the player who is signed in.
    async fn for_player(browser: &Browser, addresses: &HashMap<String, String>) -> Self {
        let (_, me) = fetch(browser, "GET", "/v1/me", "{}").await;
        Self {
            api: format!("http://{}/internal/v1", addresses["service_api"]),
            token: addresses["service_token"].clone(),
            user: me["user_id"].as_str().unwrap().to_owned(),
            account: me["accounts"][0]["account_id"].as_str().unwrap().to_owned(),
        }
    }

    async fn post(&self, path: &str, key: &str, body: &Value) {
        let request = Client::new().post(format!("{}{path}", self.api)).bearer_auth(&self.token).json(body);
        let response = request.header("idempotency-key", key).send().await.unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
    }

    async fn grant(&self, resource: &str) {
        let body = json!({
            "user_id": self.user, "account_id": self.account, "resource": resource, "quantity": 1,
            "occurred_at": "2026-03-01T12:00:00Z",
        });
        self.post("/entitlements/grant", resource, &body).await;
    }

    async fn notify(&self, title: &str) {
        let body = json!({ "to": { "user_id": self.user }, "texts": { "en": { "title": title } } });
        self.post("/notifications", &title.replace(' ', "-"), &body).await;
    }
}

async fn sign_in(browser: &Browser, gateway: &str) {
    browser.goto(format!("{gateway}/login")).await;
    browser.click("button[value=ada]").await;
    signed_in_as(browser, "Ada Lovelace").await;
}

/// Waits until the badge, the rows and the title of the page show `count` unread notifications.
async fn wait_for_unread(browser: &Browser, count: usize) {
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
async fn notifications_appear_without_a_reload_and_their_state_is_kept() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let (_running, addresses) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", addresses["gateway"]);
    sign_in(&browser, &gateway).await;
    sign_in(&other, &gateway).await;
    let service = Service::for_player(&browser, &addresses).await;
    wait_for_unread(&browser, 0).await;
    assert!(browser.text("#inbox").await.contains("Nothing yet."));

    // Both devices show the notification without a reload.
    browser.script("window.isTheSamePage = true").await;
    service.grant("sword").await;
    browser.wait_for_text("#toasts", "You received sword", PATIENCE).await;
    for browser in [&browser, &other] {
        browser.wait_for_text("#notifications", "You received sword", PATIENCE).await;
        wait_for_unread(browser, 1).await;
    }
    browser.wait_for_text("#owned", "sword", PATIENCE).await;
    assert_eq!(browser.script("return window.isTheSamePage").await, true);

    // Marking one as read on one device shows on the other, and survives a reload.
    service.notify("Maintenance tonight").await;
    wait_for_unread(&other, 2).await;
    browser.wait_for_text("#notifications li:first-child", "Maintenance tonight", PATIENCE).await;
    browser.click("#notifications li:last-child button[aria-label^='Mark read']").await;
    for browser in [&browser, &other] {
        wait_for_unread(browser, 1).await;
        browser.wait_for_text(UNREAD, "Maintenance tonight", PATIENCE).await;
    }
    browser.reload().await;
    wait_for_unread(&browser, 1).await;
    browser.wait_for_text(UNREAD, "Maintenance tonight", PATIENCE).await;

    // Notifications still arrive after a reload, and all can be marked as read at once.
    service.notify("It is over").await;
    wait_for_unread(&browser, 2).await;
    browser.click("#read-all").await;
    for browser in [&browser, &other] {
        wait_for_unread(browser, 0).await;
    }
    browser.click("#notifications li:first-child button[aria-label^='Archive']").await;
    for browser in [&browser, &other] {
        browser.wait_for_text("#notifications li:first-child", "Maintenance tonight", PATIENCE).await;
    }
    browser.reload().await;
    browser.wait_for_text("#notifications li:first-child", "Maintenance tonight", PATIENCE).await;
    wait_for_unread(&browser, 0).await;
    assert!(!browser.text("#notifications").await.contains("It is over"));

    for browser in [&browser, &other] {
        let errors = browser.console_errors().await;
        let unexpected: Vec<&String> = errors.iter().filter(|error| !error.contains("401")).collect();
        assert!(unexpected.is_empty(), "{unexpected:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn page_says_that_its_session_has_ended() {
    let browser = need!(Browser::start().await);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (running, addresses) = started(dev(&["--gateway-port", &port])).await;
    sign_in(&browser, &format!("http://{}", addresses["gateway"])).await;
    drop(running);
    // A new process with embedded stores does not know the sessions of the old one.
    let (_running, _) = started(dev(&["--gateway-port", &port])).await;
    browser.wait_for_text("#error", "You are signed out", PATIENCE).await;
}

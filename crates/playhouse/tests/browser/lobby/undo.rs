//! What a player takes back: a search, a place in line, a reservation. And marking messages as read.

use testkit::{eventually, need};

use super::*;

impl Player {
    /// Presses the second button of a drop, once it says this.
    async fn press_quiet(&self, drop: &str, text: &str) {
        let button = format!("{} .button.quiet", card(drop));
        self.sees(&button, text).await;
        self.browser.click(&button).await;
    }

    /// Returns a response of the gateway to this player.
    async fn read(&self, path: &str) -> Value {
        let (status, body) = fetch(&self.browser, "GET", path, "{}").await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn search_place_and_reservation_can_be_taken_back() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", at["gateway"]);
    let crown = schedule_drop(&at).await;
    let ada = Player::sign_in(browser, &gateway, "ada", "Ada Lovelace").await;
    let grace = Player::sign_in(other, &gateway, "grace", "Grace Hopper").await;

    // A cancelled search leaves no ticket. The next one finds a match.
    ada.browser.click("#find").await;
    ada.sees("#searching", "Looking for an opponent").await;
    ada.browser.click("#cancel").await;
    ada.sees("#match-note", "You are no longer waiting.").await;
    assert_eq!(ada.read("/v1/matchmaking/tickets").await["tickets"], json!([]));

    // The next in line moves up when a player leaves.
    ada.press(&crown, "Join the line").await;
    ada.sees(&card(&crown), "You are number 1 of 1 in line.").await;
    grace.press(&crown, "Join the line").await;
    grace.sees(&card(&crown), "You are number 2 of 2 in line.").await;
    ada.press(&crown, "Leave the line").await;
    ada.sees(&format!("{} .button", card(&crown)), "Join the line").await;
    grace.sees(&card(&crown), "You are number 1 of 1 in line.").await;

    // A released unit is for sale again, and the player's turn goes on.
    service(&at, &format!("drops/{crown}/open"), json!({})).await;
    grace.sees(&card(&crown), "It is your turn until").await;
    grace.press(&crown, "Reserve").await;
    grace.sees(&card(&crown), "1 reserved for you until").await;
    ada.sees(&card(&crown), "1 of 2 left, 1 reserved").await;
    grace.press_quiet(&crown, "Cancel reservation").await;
    grace.sees(&card(&crown), "It is your turn until").await;
    for player in [&ada, &grace] {
        player.sees(&card(&crown), "2 of 2 left").await;
    }
    assert_eq!(grace.read("/v1/orders").await["orders"], json!([]));
    // Who leaves makes room.
    ada.press(&crown, "Join the line").await;
    ada.sees(&card(&crown), "You are number 1 of 1 in line.").await;
    grace.press_quiet(&crown, "Leave the line").await;
    grace.sees(&format!("{} .button", card(&crown)), "Join the line").await;
    ada.sees(&card(&crown), "It is your turn until").await;

    for player in [&grace, &ada] {
        player.browser.click("#find").await;
    }
    for player in [&ada, &grace] {
        player.phase("gathering").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_marked_read_one_by_one_and_all_at_once() {
    let browser = need!(Browser::start().await);
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", at["gateway"]);
    let ada = Player::sign_in(browser, &gateway, "ada", "Ada Lovelace").await;
    let user = ada.read("/v1/me").await["user_id"].clone();
    for title in ["First", "Second", "Third"] {
        let text =
            json!({ "to": { "user_id": user }, "texts": { "en": { "title": title, "body": "Hello." } } });
        service(&at, "notifications", text).await;
    }
    ada.sees("#notifications", "Third").await;
    ada.sees("#unread", "3 new").await;
    assert_eq!(ada.browser.title().await, "(3) Reflex");

    let unread = async |expected: u64| {
        eventually("the inbox of the server is marked", LONG, async || {
            let counts = ada.read("/v1/notifications/counts").await;
            if counts["unread"] == expected { Ok(()) } else { Err(counts) }
        })
        .await;
    };
    ada.browser.click("[aria-label='Mark read: Second']").await;
    ada.sees("#unread", "2 new").await;
    assert!(!ada.browser.has("[aria-label='Mark read: Second']").await);
    unread(2).await;
    let listed = ada.read("/v1/notifications").await;
    let read = listed["notifications"].as_array().unwrap().iter().filter(|one| !one["read_at"].is_null());
    let titles: Vec<&Value> = read.map(|one| &one["title"]).collect();
    assert_eq!(titles, ["Second"]);

    ada.browser.click("#read-all").await;
    ada.browser.wait_for("#unread[hidden]", PATIENCE).await;
    unread(0).await;
    assert_eq!(ada.browser.title().await, "Reflex");
    // As the server has it, not only the page.
    ada.browser.reload().await;
    ada.sees("#notifications", "Third").await;
    assert!(!ada.browser.has("#notifications .unread").await);
    ada.browser.wait_for("#read-all[hidden]", PATIENCE).await;
}

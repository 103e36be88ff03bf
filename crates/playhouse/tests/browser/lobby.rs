//! The lobby at `/play`: two players walk the whole journey, from the sign-in to the item.

mod party;
mod restart;
mod tutorial;
mod undo;

use reqwest::{Client, Method};
use serde_json::json;
use testkit::{Axe, need};

use super::looks::Looks;
use super::*;

/// How long the engine, the game server and a loaded machine may take together.
const LONG: Duration = Duration::from_secs(60);

/// Notes what the content security policy blocks, from the first script on.
const VIOLATIONS: &str = "
    window.violations = [];
    addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) =>
        window.violations.push(`${violatedDirective} ${blockedURI}`));
";

/// A player in a browser of their own.
struct Player {
    browser: Browser,
    name: &'static str,
}

impl Player {
    /// Opens the lobby and signs in.
    async fn sign_in(browser: Browser, gateway: &str, user: &str, name: &'static str) -> Self {
        browser.goto(format!("{gateway}/play")).await;
        browser.wait_for("#signed-out:not([hidden])", PATIENCE).await;
        browser.click("#signed-out a.button").await;
        browser.wait_for_url(|url| url.contains("/issuer/authorize"), PATIENCE).await;
        browser.click(&format!("button[value={user}]")).await;
        browser.wait_for_url(|url| url == format!("{gateway}/play"), PATIENCE).await;
        browser.wait_for_text(".profile .player-name", name, PATIENCE).await;
        browser.wait_for("#connection[data-state=open]", PATIENCE).await;
        Self { browser, name }
    }

    async fn sees(&self, css: &str, text: &str) {
        self.browser.wait_for_text(css, text, LONG).await;
    }

    async fn phase(&self, phase: &str) {
        self.browser.wait_for(&format!("#stage[data-phase={phase}]"), LONG).await;
    }

    /// Presses the first button of a drop, once it says this.
    async fn press(&self, drop: &str, text: &str) {
        let button = format!("{} .button", card(drop));
        self.sees(&button, text).await;
        self.browser.click(&button).await;
    }

    /// Asserts that the policy blocked nothing and no script failed on the current page.
    async fn assert_clean(&self) {
        let violations = self.browser.script("return window.violations").await;
        assert_eq!(violations, json!([]), "{}", self.name);
        let errors = self.browser.console_errors().await;
        let unexpected: Vec<&String> = errors.iter().filter(|error| !error.contains("401")).collect();
        assert!(unexpected.is_empty(), "{}: {unexpected:?}", self.name);
    }
}

fn card(drop: &str) -> String {
    format!("[data-drop='{drop}']")
}

/// Calls the service API.
async fn service(at: &HashMap<String, String>, path: &str, body: Value) -> Value {
    let url = format!("http://{}/internal/v1/{path}", at["service_api"]);
    let key = uuid::Uuid::now_v7().to_string();
    let request = Client::new().request(Method::POST, url).bearer_auth(&at["service_token"]);
    let answer = request.header("idempotency-key", key).json(&body).send().await.unwrap();
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    answer.json().await.unwrap_or_default()
}

/// Schedules a drop of two crowns, one per player, that admits one player at a time. It opens when the test says so.
async fn schedule_drop(at: &HashMap<String, String>) -> String {
    let terms = json!({
        "price": { "amount": 499, "currency": "EUR" }, "per_player": 1, "reservation_ms": 600_000, "when_sold_out": "stay_open",
        "admission": {
            "batch": 1, "period_ms": 500, "capacity": 1, "lifetime_ms": 600_000, "arrive_within_ms": 600_000,
        },
    });
    let drop = json!({ "name": "Silver crown", "resource": "silver-crown", "stock": 2, "terms": terms });
    let id = service(at, "drops", drop).await["drop_id"].as_str().unwrap().to_owned();
    let soon = base::Clock::system().now().after(Duration::from_secs(3_600));
    service(at, &format!("drops/{id}/schedule"), json!({ "opens_at": soon.to_rfc3339() })).await;
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn two_players_walk_from_sign_in_to_the_trophy_and_the_item() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let looks = Looks::new(need!(Axe::find()), "lobby-screenshots");
    for browser in [&browser, &other] {
        browser.run_before_pages(VIOLATIONS).await;
    }
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", at["gateway"]);
    let crown = schedule_drop(&at).await;
    let mut faults: Vec<String> = Vec::new();

    browser.goto(format!("{gateway}/play")).await;
    browser.wait_for("#signed-out:not([hidden])", PATIENCE).await;
    faults.extend(looks.faults(&browser, "signed out").await);
    let ada = Player::sign_in(browser, &gateway, "ada", "Ada Lovelace").await;
    let grace = Player::sign_in(other, &gateway, "grace", "Grace Hopper").await;

    // A new player owns nothing and sees what to do.
    ada.sees("#no-items", "Win a duel for your first trophy").await;
    ada.sees("#no-notifications", "No messages").await;
    ada.sees(".profile .player-name", "Ada Lovelace").await;
    ada.sees("#since", "Playing since").await;
    ada.sees("#trophies", "0").await;
    ada.browser.click("summary").await;
    let (_, me) = fetch(&ada.browser, "GET", "/v1/me", "{}").await;
    ada.sees("#player-id", me["user_id"].as_str().unwrap()).await;
    ada.sees(&card(&crown), "Opens in 59:").await;
    ada.sees(&card(&crown), "2 of 2 left").await;
    faults.extend(looks.faults(&ada.browser, "lobby of a new player").await);

    // Both stand in line. A reload keeps the place.
    ada.press(&crown, "Join the line").await;
    ada.sees(&card(&crown), "You are number 1 of 1 in line.").await;
    grace.press(&crown, "Join the line").await;
    grace.sees(&card(&crown), "You are number 2 of 2 in line.").await;
    grace.browser.reload().await;
    grace.sees(&card(&crown), "You are number 2 of 2 in line.").await;

    // A reload while waiting for an opponent goes on waiting.
    ada.browser.click("#find").await;
    ada.sees("#searching", "Looking for an opponent").await;
    ada.browser.reload().await;
    ada.sees("#searching", "Looking for an opponent").await;
    faults.extend(looks.faults(&ada.browser, "looking for an opponent").await);
    grace.browser.click("#find").await;

    play(&ada, &grace, &looks, &mut faults).await;

    // The result arrives for both, and the trophy for the winner, without a reload.
    ada.sees("#items [data-resource=trophy]", "Trophy").await;
    ada.sees("#trophies", "1").await;
    ada.sees("#notifications", "You won against Grace Hopper").await;
    grace.sees("#notifications", "You lost against Ada Lovelace").await;
    assert!(!grace.browser.has("#items [data-resource=trophy]").await);
    faults.extend(looks.faults(&ada.browser, "victory").await);
    grace.browser.click("#leave").await;
    grace.browser.wait_for("#find", PATIENCE).await;
    // Nor does a reload bring the finished match back.
    grace.browser.reload().await;
    grace.browser.wait_for("#find", PATIENCE).await;

    buy(&ada, &grace, &at, &crown, &gateway, &looks, &mut faults).await;
    for player in [&ada, &grace] {
        player.assert_clean().await;
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Plays until the first player has won. The page of the first one is loaded again in the middle.
async fn play(ada: &Player, grace: &Player, looks: &Looks, faults: &mut Vec<String>) {
    ada.phase("gathering").await;
    grace.phase("gathering").await;
    ada.sees("#arena-note", "You play against Grace Hopper").await;
    faults.extend(looks.faults(&ada.browser, "match found").await);
    ada.browser.click("#pad").await;
    ada.sees("#arena-note", "Waiting until Grace Hopper is ready").await;
    grace.sees("#seats", "ready").await;
    grace.browser.click("#pad").await;

    let mut has_reloaded = false;
    loop {
        // Whichever comes first.
        ada.browser.wait_for("#stage[data-phase=green], #stage[data-phase=over]", LONG).await;
        if ada.browser.has("#stage[data-phase=over]").await {
            break;
        }
        ada.browser.click("#pad").await;
        if !has_reloaded && ada.browser.text("#seats .you .points").await == "1" {
            has_reloaded = true;
            ada.browser.reload().await;
            ada.sees("#seats .you .points", "1").await;
        }
    }
    assert!(has_reloaded);
    ada.sees("#pad", "You won!").await;
    grace.sees("#pad", "You lost.").await;
    looks.picture(&grace.browser, "defeat", "light").await;
}

/// Opens the drop. The first in line buys, and the item arrives; the second sees every step.
async fn buy(
    ada: &Player,
    grace: &Player,
    at: &HashMap<String, String>,
    crown: &str,
    gateway: &str,
    looks: &Looks,
    faults: &mut Vec<String>,
) {
    service(at, &format!("drops/{crown}/open"), json!({})).await;
    ada.sees(&card(crown), "Open now").await;
    ada.sees(&card(crown), "It is your turn until").await;
    grace.sees(&card(crown), "You are number 1 of 1 in line.").await;
    ada.press(crown, "Reserve").await;
    for player in [ada, grace] {
        player.sees(&card(crown), "1 of 2 left, 1 reserved").await;
    }
    ada.browser.reload().await;
    ada.sees(&card(crown), "1 reserved for you until").await;
    faults.extend(looks.faults(&ada.browser, "reserved").await);
    ada.press(crown, "Pay").await;
    ada.browser.wait_for_url(|url| url.contains("/demo/checkout"), PATIENCE).await;
    ada.browser.click("button[value=pay]").await;
    ada.browser.wait_for_url(|url| url == format!("{gateway}/play"), PATIENCE).await;
    ada.sees("#orders", "paid, it is yours").await;
    ada.sees("#items [data-resource=silver-crown]", "Silver crown").await;
    ada.sees("#item-count", "1").await;
    ada.sees("#notifications", "You bought 1 × silver-crown").await;
    ada.sees(&card(crown), "You have all that a player may buy.").await;
    // Her place is free, so the next in line is admitted.
    grace.sees(&card(crown), "It is your turn until").await;
    grace.sees(&card(crown), "1 of 2 left").await;
    faults.extend(looks.faults(&ada.browser, "owner").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn keyboard_is_enough_to_play_and_a_false_start_costs_the_point() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let (_running, at) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", at["gateway"]);
    let ada = Player::sign_in(browser, &gateway, "ada", "Ada Lovelace").await;
    let grace = Player::sign_in(other, &gateway, "grace", "Grace Hopper").await;
    for player in [&ada, &grace] {
        player.browser.click("#find").await;
    }
    for player in [&ada, &grace] {
        player.phase("gathering").await;
        player.browser.script("document.activeElement.blur()").await;
        player.browser.script(&key("Space")).await;
    }
    // Early presses only: the other player wins three rounds without doing anything.
    loop {
        ada.browser.wait_for("#stage[data-phase=steady], #stage[data-phase=over]", LONG).await;
        if ada.browser.has("#stage[data-phase=over]").await {
            break;
        }
        ada.browser.script(&key("Space")).await;
        ada.sees("#pad", "Too").await;
    }
    ada.sees("#pad", "You lost.").await;
    grace.sees("#pad", "You won!").await;
    grace.sees("#items [data-resource=trophy]", "Trophy").await;
    // A rematch begins at once, although the ticket of the first match still exists.
    for player in [&ada, &grace] {
        player.browser.click("#again").await;
    }
    for player in [&ada, &grace] {
        player.phase("gathering").await;
        player.sees("#pad", "I am ready").await;
    }
}

/// Returns a script that presses a key.
fn key(code: &str) -> String {
    format!("document.dispatchEvent(new KeyboardEvent('keydown', {{ code: '{code}', bubbles: true }}))")
}

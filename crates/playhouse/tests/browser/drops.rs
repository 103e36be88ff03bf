//! A drop on the start page, from sign-in to ownership.

use testkit::need;

use super::*;

const CARD: &str = ".drop";
const BUTTON: &str = ".drop .buttons .button:not(.quiet)";
/// The demo drop of `dev` opens 20 seconds after the start.
const OPENING: Duration = Duration::from_secs(60);

/// A script that counts changes of the page after which a card contradicts itself.
const CONTRADICTIONS: &str = r#"
    window.contradictions = 0;
    const look = () => {
        const card = document.querySelector(".drop");
        const isTurn = card.querySelector(".status").textContent.includes("your turn");
        if (isTurn && card.querySelector(".buttons").textContent.includes("Join")) window.contradictions += 1;
    };
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
"#;

async fn sign_in(browser: &Browser, gateway: &str, user: &str, name: &str) {
    browser.goto(format!("{gateway}/login")).await;
    browser.click(&format!("button[value={user}]")).await;
    signed_in_as(browser, name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn player_joins_is_admitted_buys_and_owns_the_item() {
    let (browser, other) = (need!(Browser::start().await), need!(Browser::start().await));
    let (_running, addresses) = started(dev(&["--gateway-port", "0"])).await;
    let gateway = format!("http://{}", addresses["gateway"]);
    sign_in(&browser, &gateway, "ada", "Ada Lovelace").await;
    sign_in(&other, &gateway, "grace", "Grace Hopper").await;

    // Before the opening: the countdown, the stock, a place in line.
    browser.wait_for_text(CARD, "Golden hat", PATIENCE).await;
    browser.wait_for_text(".drop .opening", "Opens in 0:", PATIENCE).await;
    browser.wait_for_text(".drop .left", "25 of 25 left", PATIENCE).await;
    browser.wait_for_text(BUTTON, "Join the line", PATIENCE).await;
    browser.click(BUTTON).await;
    browser.wait_for_text(".drop .status", "You are number 1 of 1.", PATIENCE).await;
    other.wait_for_text(BUTTON, "Join the line", PATIENCE).await;
    other.click(BUTTON).await;
    other.wait_for_text(".drop .status", "You are number 2 of 2.", PATIENCE).await;
    // A reload keeps the place.
    browser.reload().await;
    browser.wait_for_text(".drop .status", "You are number 1 of 2.", PATIENCE).await;

    // The player is admitted without a reload. The card never says "your turn" while it offers to join the line.
    browser.script("window.isTheSamePage = true").await;
    browser.script(CONTRADICTIONS).await;
    browser.wait_for_text(".drop .status", "It is your turn", OPENING).await;
    assert_eq!(browser.script("return window.isTheSamePage").await, true);
    browser.wait_for_text(".drop .opening", "Open now", PATIENCE).await;
    browser.wait_for_text(BUTTON, "Reserve", PATIENCE).await;
    assert_eq!(browser.script("return window.contradictions").await, 0);
    // Times are shown in the player's time zone, not in UTC as in the event.
    let shown = browser.wait_for_text("#notifications", "Go in before", PATIENCE).await;
    assert!(!shown.contains('Z'), "{shown}");
    browser.fill(".drop input", "2").await;
    browser.click(BUTTON).await;
    browser.wait_for_text(".drop .status", "2 reserved for you", PATIENCE).await;
    // Both pages show the new stock.
    for browser in [&browser, &other] {
        browser.wait_for_text(".drop .left", "23 of 25 left", PATIENCE).await;
    }
    browser.reload().await;
    browser.wait_for_text(".drop .status", "2 reserved for you", PATIENCE).await;

    // The payment provider redirects back after the payment.
    browser.wait_for_text(BUTTON, "Pay", PATIENCE).await;
    browser.click(BUTTON).await;
    browser.wait_for_url(|url| url.contains("/demo/checkout"), PATIENCE).await;
    assert_eq!(browser.text("#price").await, "9.98 EUR");
    browser.click("button[value=pay]").await;
    browser.wait_for_url(|url| url == format!("{gateway}/"), PATIENCE).await;
    browser.wait_for_text("#orders", "paid: it is yours", PATIENCE).await;
    browser.wait_for_text("#owned", "golden-hat", PATIENCE).await;
    browser.wait_for_text("#notifications", "You received golden-hat", PATIENCE).await;
    browser.wait_for_text(".drop .left", "23 of 25 left", PATIENCE).await;
    browser.wait_for_text(".drop .status", "You have all that a player may buy.", PATIENCE).await;
    assert!(!browser.has(".drop .buttons .button").await, "no button is left");

    // The other player declines to pay, and the unit becomes available again.
    other.wait_for_text(BUTTON, "Reserve", OPENING).await;
    other.click(BUTTON).await;
    other.wait_for_text(BUTTON, "Pay", PATIENCE).await;
    browser.wait_for_text(".drop .left", "22 of 25 left", PATIENCE).await;
    other.click(BUTTON).await;
    other.wait_for_url(|url| url.contains("/demo/checkout"), PATIENCE).await;
    other.click("button[value=decline]").await;
    other.wait_for_text("#orders", "the payment failed", PATIENCE).await;
    browser.wait_for_text(".drop .left", "23 of 25 left", PATIENCE).await;

    for browser in [&browser, &other] {
        let errors = browser.console_errors().await;
        let unexpected: Vec<&String> = errors.iter().filter(|error| !error.contains("401")).collect();
        assert!(unexpected.is_empty(), "{unexpected:?}");
    }
}

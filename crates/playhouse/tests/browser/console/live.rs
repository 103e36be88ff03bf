//! Live updates: changes made elsewhere appear, unless the operator uses the section that changed.

use std::time::Instant;

use reqwest::Method;
use serde_json::json;
use testkit::{eventually, need};

use super::operator::{Operator, link};
use super::site::{Player, Site, Stores};
use super::*;

/// How long a change that must not appear is waited for: several rounds of updates.
const NOTHING: Duration = Duration::from_secs(3);
/// How long a section changes many times a second.
const RAPID: Duration = Duration::from_secs(5);

/// The page of a player, who has the notes that other operators add.
struct Notes<'a> {
    operator: Operator<'a>,
    site: &'a Site,
    player: Player,
}

impl Notes<'_> {
    /// Adds a note as another operator.
    async fn add(&self, note: &str) {
        let path = format!("/users/{}/notes", self.player.user);
        self.site.admin(Method::POST, &path, json!({ "note": note })).await;
    }

    async fn are_shown(&self, note: &str) -> bool {
        self.operator.browser.text("#notes").await.contains(note)
    }

    /// Adds a note that must not appear while `what` is so.
    async fn add_unseen(&self, note: &str, what: &str) {
        self.add(note).await;
        tokio::time::sleep(NOTHING).await;
        assert!(!self.are_shown(note).await, "the section is replaced while {what}");
    }

    async fn wait_until_shown(&self, note: &str) {
        self.operator.wait_for("notes", note).await;
    }

    /// Waits until the page says that it holds an update back.
    async fn wait_until_held_back(&self) {
        self.operator.browser.wait_for_text(".live-state", "update waits", PATIENCE).await;
    }

    /// Counts the requests of the page since it was loaded.
    async fn requests(&self) -> u64 {
        let js = "return performance.getEntriesByType('resource').length";
        self.operator.browser.script(js).await.as_u64().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_appear_unless_the_operator_uses_the_section() {
    let browser = need!(Browser::start().await);
    let site = need!(Site::start(Stores::Embedded).await);
    let operator = site.sign_in(&browser).await;

    // A list: the section with the new player is replaced, and the page is not loaded again.
    operator.open("/console/players").await;
    browser.wait_for_text(".live-state", "Live", PATIENCE).await;
    browser.script("window.isTheSamePage = true").await;
    let player = site.player("ada").await;
    browser.wait_for_text("main", "Ada Lovelace", PATIENCE).await;
    assert_eq!(browser.script("return window.isTheSamePage").await, true);
    // The operator types in the filter, which is in the section.
    browser.fill("[name=find]", "gra").await;
    site.player("grace").await;
    browser.wait_for_text(".live-state", "update waits", PATIENCE).await;
    assert_eq!(browser.script("return document.querySelector('[name=find]').value").await, "gra");
    assert!(!browser.text("main").await.contains("Grace Hopper"));
    browser.script("document.activeElement.blur()").await;
    browser.wait_for_text("main", "Grace Hopper", PATIENCE).await;

    let page = format!("/console/players/{}", player.user);
    let notes = Notes { operator, site: &site, player };
    notes.operator.open(&page).await;
    browser.wait_for_text(".live-state", "Live", PATIENCE).await;
    notes.add("seen at once").await;
    notes.wait_until_shown("seen at once").await;

    notes.operator.open_dialog("POST /users/{user_id}/ban", "").await;
    browser.fill("dialog [name='f.reason']", "half a sentence").await;
    notes.add_unseen("behind the dialog", "a dialog is open").await;
    notes.wait_until_held_back().await;
    let typed = browser.script("return document.querySelector('dialog [name=\"f.reason\"]').value").await;
    assert_eq!(typed, "half a sentence");
    browser.click("dialog [data-cancel]").await;
    notes.wait_until_shown("behind the dialog").await;

    let tick = "const box = document.createElement('input'); box.type = 'checkbox'; box.checked = true; \
        document.querySelector('#notes td').append(box)";
    browser.script(tick).await;
    notes.add_unseen("behind the tick", "a row is ticked").await;
    browser.script("document.querySelector('#notes input').click()").await;
    notes.wait_until_shown("behind the tick").await;

    browser.script("getSelection().selectAllChildren(document.querySelector('#notes'))").await;
    notes.add_unseen("behind the selection", "its text is selected").await;
    browser.script("getSelection().removeAllRanges()").await;
    notes.wait_until_shown("behind the selection").await;

    browser.click(".live button").await;
    browser.wait_for_text(".live-state", "Paused", PATIENCE).await;
    notes.add_unseen("while paused", "updates are paused").await;
    browser.click(".live button").await;
    notes.wait_until_shown("while paused").await;

    // However often a section changes, the page fetches it once a second at most.
    let (before, started) = (notes.requests().await, Instant::now());
    while started.elapsed() < RAPID {
        notes.add("again and again").await;
    }
    let fetched = notes.requests().await - before;
    assert!(fetched <= started.elapsed().as_secs() + 1, "{fetched} requests in {:?}", started.elapsed());

    browser.wait_for_text(".live-state", "Live", PATIENCE).await;
    browser.hide().await;
    eventually("the page is hidden", PATIENCE, async || {
        browser.script("return document.hidden").await == true
    })
    .await;
    let before = notes.requests().await;
    notes.add_unseen("while hidden", "the page is hidden").await;
    assert_eq!(notes.requests().await, before, "a hidden page sends no request");
    browser.unhide().await;
    notes.wait_until_shown("while hidden").await;
    assert!(browser.has(&link("POST /users/{user_id}/ban", "")).await, "new sections have their actions");
    notes.operator.assert_no_errors("live").await;
}

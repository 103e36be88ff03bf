//! Actions about tickets and game servers.

use reqwest::Method;
use serde_json::json;

use super::super::fill;
use super::*;

/// A ticket of the queue `raid` is pending while the game keeps the request for its server waiting.
pub(super) async fn tickets(site: &Site, operator: &Operator<'_>, filled: &Filled) {
    fill::join(site, &site.player("ken").await, "raid").await;
    let ticket = fill::join(site, &filled.ada, "raid").await;
    operator.open(&format!("/console/tickets/{ticket}")).await;
    operator.act("POST /tickets/{ticket_id}/release", &[]).await;
    site.receiver.release_game();

    // A match whose players are asked whether they are ready.
    for name in ["margaret", "tim"] {
        fill::join(site, &site.player(name).await, "squad").await;
    }
    operator.open("/console/matchmaking").await;
    operator.wait_for("ready", "Answer until").await;

    operator.open(&format!("/console/matchmaking?search={}", filled.waiting.user)).await;
    operator.browser.click("#search td .id").await;
    operator.wait_for("ticket", "Waiting").await;
    operator.act("DELETE /tickets/{ticket_id}", &[]).await;
    operator.open(&format!("/console/matchmaking?search={}", filled.waiting.user)).await;
    operator.wait_for("search", "no player with this id waits").await;
}

/// A rule set with a comment of this size is changed as easily as a small one.
const LONG: usize = 10_000;
const RULE_SET: &str = "name = \"arena\"\n[teams.side]\ncount = 2\nmax = 1\n";

/// Adds a rule set, checks and changes it. Mistakes and conflicts change nothing.
async fn rule_sets(site: &Site, operator: &Operator<'_>) {
    let (browser, set) = (operator.browser, "PUT /definitions/{kind}/{name}");
    operator.open("/console/rules").await;
    operator.open_dialog(set, "").await;
    // A rule set is the first choice.
    browser.fill("dialog [name='e.name']", "arena").await;
    browser.fill("dialog [name='f.text']", RULE_SET).await;
    browser.click("dialog [name=check]").await;
    browser.wait_for_text(".action", "Nothing is changed yet.", PATIENCE).await;
    let names = browser.attributes("[name='e.name']", "value").await;
    assert_eq!(names, ["arena"], "the form keeps what was entered");
    assert!(!exists(site, "arena").await, "a check changes nothing");
    browser.fill("[name=note]", "the arena is new").await;
    browser.click(".action .buttons button").await;
    browser.wait_for_text("main > .notice[role=status]", "Set: done.", PATIENCE).await;
    operator.wait_for("definitions", "arena").await;

    // A long text is in the form, and two mistakes are two lines.
    let page = "/console/rules/rule-set/arena";
    let long = format!("{RULE_SET}# {}\n", "x".repeat(LONG));
    let stored = json!({ "text": long });
    site.admin(Method::PUT, "/definitions/rule-set/arena", stored.clone()).await;
    operator.open(page).await;
    operator.open_dialog(set, "").await;
    let shown = browser.script("return document.querySelector(\"dialog [name='f.text']\").value").await;
    assert_eq!(shown, stored["text"]);
    let wrong = long.replace("count = 2", "count = \"two\"").replace("max = 1", "max = 1\nmost = 1");
    // Faster than typing it.
    browser
        .script(&format!("document.querySelector(\"dialog [name='f.text']\").value = {}", json!(wrong)))
        .await;
    browser.click("dialog .buttons button").await;
    browser.wait_for(".action [role=alert]", PATIENCE).await;
    let mistakes = browser.texts(".action [role=alert] li").await;
    assert!(mistakes.len() == 2 && mistakes.iter().any(|line| line.contains("most")), "{mistakes:?}");
    assert_eq!(definition(site, "arena").await["version"], 2, "mistakes change nothing");

    // Somebody else is faster.
    operator.open(page).await;
    operator.open_dialog(set, "").await;
    site.admin(Method::PUT, "/definitions/rule-set/arena", json!({ "text": RULE_SET })).await;
    browser.fill("dialog [name='f.text']", "name = \"late\"").await;
    browser.click("dialog .buttons button").await;
    browser.wait_for_text(".action [role=alert]", "is at version 3, but you expected 2", PATIENCE).await;
    assert_eq!(definition(site, "arena").await["version"], 3);
    // The browser logs the two refusals.
    let refused = browser.console_errors().await;
    let is_refusal = |line: &String| line.contains("/console/actions") && line.contains("status of 4");
    assert!(refused.len() == 2 && refused.iter().all(is_refusal), "{refused:?}");
}

async fn definition(site: &Site, name: &str) -> Value {
    site.admin(Method::GET, &format!("/definitions/rule-set/{name}"), Value::Null).await
}

async fn exists(site: &Site, name: &str) -> bool {
    let listed = site.admin(Method::GET, "/definitions", Value::Null).await;
    listed["definitions"].as_array().unwrap().iter().any(|definition| definition["name"] == name)
}

/// A queue that no other step uses is changed and removed, and comes back.
pub(super) async fn definitions(site: &Site, operator: &Operator<'_>) {
    rule_sets(site, operator).await;
    operator.open("/console/rules").await;
    operator.wait_for("definitions", "configuration file").await;
    let spare = "/console/rules/queue/raid";
    operator.open(spare).await;
    operator.act("PUT /definitions/{kind}/{name}", &[("text", "tags = [\"beta\"]")]).await;
    operator.wait_for("definition", "tags = [\"beta\"]").await;
    operator.wait_for("history", "reason").await;
    operator.act("DELETE /definitions/{kind}/{name}", &[]).await;
    operator.wait_for("definition", "Removed. Roll back").await;
    operator.act_on("POST /definitions/{kind}/{name}/rollback", "f.version=0", &[]).await;
    operator.wait_for("definition", "configuration file").await;
    operator.open(&format!("{spare}?from=1&to=2")).await;
    operator.wait_for("difference", "-tags = [\"beta\"]").await;
}

/// The game has refused servers, and refuses to take them back.
pub(super) async fn allocations(operator: &Operator<'_>) {
    let failed = "/console/allocations?state=failed";
    operator.open(failed).await;
    operator.act("POST /allocations/retry", &[("assigner", "game")]).await;
    wait_for_job(operator).await;
    operator.open(failed).await;
    operator.wait_for("calls", "403").await;
    operator.act("POST /allocations/{match}/retry", &[]).await;
    operator.open(failed).await;
    operator.act("POST /allocations/{match}/skip", &[]).await;
    operator.open("/console/allocations?state=skipped").await;
    operator.wait_for("calls", "Skipped").await;
}

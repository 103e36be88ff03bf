//! Every action of the console, by clicking.

mod drops;
mod events;
mod matches;

use std::collections::BTreeSet;

use super::fill::Filled;
use super::operator::{Operator, link};
use super::site::{Site, Stores};
use super::*;

/// Returns whether an action exists with these stores. With embedded stores, no other process can hold a lock. The actions for
/// development need the builtin issuer, which is only for embedded stores.
fn is_possible(action: &str, stores: Stores) -> bool {
    match stores {
        Stores::Embedded => action != "POST /locks/sessions/{session}/end",
        Stores::Servers => !action.contains("/try-it/"),
    }
}

/// Takes every action once, and asserts that each was offered, has an effect on its screen and is in the audit log.
pub(super) async fn take_all(site: &Site, operator: &Operator<'_>, filled: &Filled) {
    players(operator, filled).await;
    events::pipeline(site, operator).await;
    events::dead_letters(site, operator, filled).await;
    events::broadcasts(site, operator).await;
    matches::tickets(site, operator, filled).await;
    drops::all(operator, filled).await;
    matches::definitions(site, operator).await;
    // Servers are given back some time after they were refused.
    matches::allocations(operator).await;
    match site.stores {
        Stores::Embedded => try_it(operator).await,
        Stores::Servers => super::faults::end_session_in_the_way(site, operator, &filled.ada).await,
    }

    let all = playhouse::console_actions().into_iter();
    let all: BTreeSet<String> = all.filter(|action| is_possible(action, site.stores)).collect();
    let taken: BTreeSet<String> = operator.taken().into_iter().map(|(route, _)| route).collect();
    assert_eq!(taken, all, "every action has a step in this test");
    assert_eq!(operator.offered(), all, "every action is offered on a screen");
    audit_log(operator).await;
    operator.assert_no_errors("actions").await;
}

async fn players(operator: &Operator<'_>, filled: &Filled) {
    let player = |user: &str| format!("/console/players/{user}");
    operator.open(&player(&filled.ada.user)).await;
    operator.act("POST /users/{user_id}/notes", &[("note", "Called support about a refund.")]).await;
    operator.wait_for("notes", "Called support about a refund.").await;
    operator.act("POST /users/{user_id}/end-sessions", &[]).await;
    operator.act("POST /users/{user_id}/ban", &[("reason", "Tests the ban")]).await;
    operator.wait_for("facts", "Banned").await;
    operator.act("POST /users/{user_id}/unban", &[]).await;
    operator.wait_for("facts", "Active").await;
    operator.act("POST /entitlements/grant", &[("resource", "title:hero")]).await;
    operator.wait_for("inventory", "title:hero").await;
    operator.act_on("POST /entitlements/revoke", "f.resource=title:hero", &[]).await;
    operator.wait_for("inventory", "Revoked").await;
    export(operator).await;
    operator.open(&player(&filled.spare.user)).await;
    operator.act("POST /users/{user_id}/erase", &[]).await;
    operator.wait_for("facts", "All personal data of this player was removed.").await;
}

/// Saves the export of the player whose page is open.
async fn export(operator: &Operator<'_>) {
    let link = "#facts a[href$='/export']";
    let href = operator.browser.attributes(link, "href").await.remove(0);
    let page = operator.browser.url().await;
    operator.browser.click(link).await;
    assert_eq!(operator.browser.url().await, page, "the browser saves the file, and stays on the page");
    let read = format!(
        "const file = await fetch('{href}'); \
         return {{ cached: file.headers.get('cache-control'), kind: file.headers.get('content-disposition'), data: await file.json() }}"
    );
    let file = operator.browser.script_async(&read).await;
    assert_eq!(file["cached"], "no-store", "{file}");
    assert!(file["kind"].as_str().unwrap().starts_with("attachment"), "{file}");
    for part in ["entitlements", "notifications", "drops", "matchmaking", "sessions", "timeline"] {
        assert!(!file["data"][part].is_null(), "the file lacks {part}: {file}");
    }
}

async fn try_it(operator: &Operator<'_>) {
    operator.open("/console/try-it?user=newcomer").await;
    operator.act("POST /try-it/players/{user}/sign-in", &[]).await;
    operator.wait_for("player", "newcomer").await;
    operator.act("POST /try-it/players/{user}/notify", &[("title", "Hello from a test")]).await;
    operator.wait_for("notify", "Hello from a test").await;
    operator.act_on("POST /try-it/players/{user}/join", "f.queue=duel", &[]).await;
    operator.wait_for("queue", "duel").await;
    operator.act("POST /try-it/failed-event", &[]).await;
}

/// Finds every action in the audit log, page by page.
async fn audit_log(operator: &Operator<'_>) {
    let browser = operator.browser;
    operator.open("/console/audit-log").await;
    let mut missing = operator.taken();
    loop {
        let column = async |name: &str| browser.texts(&format!("#entries td[data-column={name}]")).await;
        let (actions, outcomes, notes) =
            (column("Action").await, column("Outcome").await, column("Note").await);
        for ((action, outcome), note) in actions.iter().zip(&outcomes).zip(&notes) {
            if outcome.starts_with("Done (2") {
                missing.retain(|(route, own)| (route, own) != (action, note));
            }
        }
        if missing.is_empty() || !browser.has("a[rel=next]").await {
            break;
        }
        browser.click("a[rel=next]").await;
    }
    assert!(missing.is_empty(), "not in the audit log: {missing:?}");
}

/// Returns the last part of the URL of the page: the id of what it shows.
async fn shown_id(operator: &Operator<'_>) -> String {
    let url = operator.browser.url().await;
    url.rsplit('/').next().unwrap().to_owned()
}

/// Waits until the job whose page is open has ended.
async fn wait_for_job(operator: &Operator<'_>) {
    operator.browser.wait_for_url(|url| url.contains("/console/jobs/"), PATIENCE).await;
    operator.wait_for("progress", "Done").await;
}

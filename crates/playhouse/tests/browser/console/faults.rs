//! Faults that are found and mended by clicking only, from the overview on.

use axum::http::StatusCode;
use hierlock::{LockManager, Options, Target};
use reqwest::Method;
use serde_json::json;
use testkit::{eventually, need};

use super::fill::{self, admission, join_line, open_drop};
use super::operator::{Operator, link};
use super::site::{Player, Site, Stores};
use super::*;

/// Waits until the overview names a fault, and follows its link.
async fn follow_finding(operator: &Operator<'_>, what: &str, screen: &str) {
    let browser = operator.browser;
    operator.open_menu("Overview").await;
    browser.wait_for_text("main", what, PATIENCE).await;
    let titles = browser.texts("#findings tbody tr").await;
    let row = titles.iter().position(|row| row.contains(what)).unwrap_or_else(|| panic!("{titles:?}"));
    browser.click(&format!("#findings tbody tr:nth-child({}) a", row + 1)).await;
    browser.wait_for_text("h1", screen, PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_key_is_found_and_skipped() {
    let browser = need!(Browser::start().await);
    let site = need!(Site::start(Stores::Embedded).await);
    let planted = site.admin(Method::POST, "/try-it/failed-event", Value::Null).await;
    let operator = site.sign_in(&browser).await;

    follow_finding(&operator, "failed events: 1", "Pipeline").await;
    let blocked = operator.wait_for("blocked", "must be words").await;
    let (failed, behind) = (site::text(&planted["event_id"]), site::text(&planted["blocked_event_id"]));
    assert!(blocked.contains(&failed), "{blocked}");
    operator.act_on("POST /outbox/{event}/skip", &format!("p.event={failed}"), &[]).await;
    operator.wait_for("now", "No event has failed.").await;
    operator.wait_for("blocked", "No key is blocked").await;
    let state = site.admin(Method::GET, &format!("/outbox/{behind}"), Value::Null).await["state"].clone();
    assert_eq!(state, "PUBLISHED", "the event behind it is out");
    operator.open_menu("Overview").await;
    operator.wait_for("findings", "Nothing is wrong.").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_webhook_is_enabled_and_gets_what_it_missed() {
    let browser = need!(Browser::start().await);
    let site = need!(Site::start(Stores::Embedded).await);
    let ada = site.player("ada").await;
    for _ in 0..3 {
        fill::notify(&site, &ada, "partner").await;
    }
    let operator = site.sign_in(&browser).await;

    follow_finding(&operator, "the webhook destination partner has been disabled", "Webhooks").await;
    operator.wait_for("destinations", "it answered 410 Gone").await;
    // Its owners have repaired it.
    site.receiver.set_partner(StatusCode::OK);
    operator.act_on("POST /webhooks/{name}/enable", "p.name=partner", &[]).await;
    operator.act("POST /webhooks/{name}/recover", &[("since", "2026-03-01T12:00:00Z")]).await;
    operator.wait_for("progress", "Done").await;
    eventually("the partner has all messages", PATIENCE, async || {
        let delivered = site.receiver.delivered();
        if delivered == 3 { Ok(()) } else { Err(delivered) }
    })
    .await;
    operator.open_menu("Dead letters").await;
    operator.wait_for("groups", "There are no dead letters").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stuck_line_moves_again() {
    let browser = need!(Browser::start().await);
    let site = need!(Site::start(Stores::Embedded).await);
    let (ada, grace) = (site.player("ada").await, site.player("grace").await);
    // The only place inside is taken, and somebody left the line closed.
    let drop = open_drop(&site, 1).await;
    join_line(&site, &drop, &ada).await;
    admission(&site, &drop, &ada).await;
    join_line(&site, &drop, &grace).await;
    site.admin(Method::PUT, &format!("/drops/{drop}/everyone-waits"), json!({ "on": true })).await;
    let operator = site.sign_in(&browser).await;

    operator.open_menu("Drops").await;
    operator.wait_for("running", "Demo sale").await;
    browser.click("#running td a").await;
    operator.wait_for("now", "Everyone waits: no player is admitted until you turn it off.").await;
    operator.act("PUT /drops/{drop_id}/everyone-waits", &[]).await;
    let now = operator.wait_for("now", "In line").await;
    assert!(!now.contains("Everyone waits"), "{now}");
    operator.act("PUT /drops/{drop_id}/pace", &[("capacity", "5")]).await;
    eventually("the line is empty", PATIENCE, async || {
        let figures = browser.texts("#now .figure").await;
        if figures.contains(&"In line0".to_owned()) { Ok(()) } else { Err(format!("{figures:?}")) }
    })
    .await;
    admission(&site, &drop, &grace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hot_lock_is_released() {
    let browser = need!(Browser::start().await);
    let site = need!(Site::start(Stores::Servers).await);
    let ada = site.player("ada").await;
    let operator = site.sign_in(&browser).await;
    end_session_in_the_way(&site, &operator, &ada).await;
}

/// A transaction holds the lock of a player and does not end, and a grant waits for it. The operator ends its session.
pub(super) async fn end_session_in_the_way(site: &Site, operator: &Operator<'_>, player: &Player) {
    let options = Options { buckets: 1000, ..Options::default() };
    let locks = LockManager::mysql(site.server(), &options).await.unwrap();
    let forgotten = locks.acquire(Target::user(&player.user).unwrap()).await.unwrap();
    let session = forgotten.session_id().unwrap();
    let mend = async {
        operator.open_menu("Locks").await;
        operator.wait_for("waits", &session.to_string()).await;
        let route = "POST /locks/sessions/{session}/end";
        let part = format!("p.session={session}");
        operator.browser.wait_for(&link(route, &part), PATIENCE).await;
        operator.act_on(route, &part, &[]).await;
        operator.wait_for("waits", "No session waits for a lock.").await;
    };
    tokio::join!(site.grant(player, "skin:unlocked"), mend);
    assert!(forgotten.release().await.is_err(), "the lock was lost with its session");
    locks.close().await;
}

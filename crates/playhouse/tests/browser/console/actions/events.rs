//! Actions about events, dead letters, webhooks, jobs and broadcasts.

use axum::http::StatusCode;
use testkit::eventually;

use super::super::fill;
use super::*;

pub(super) async fn pipeline(site: &Site, operator: &Operator<'_>) {
    let failed = "/console/pipeline?state=failed";
    operator.open(failed).await;
    let first = operator.browser.attributes("#events td .id", "href").await.remove(0);
    operator.open(&first).await;
    operator.wait_for("state", "Failed").await;
    operator.act("POST /outbox/{event}/retry", &[]).await;
    // The bus refuses it again.
    operator.wait_for("state", "Failed").await;
    operator.act("POST /outbox/{event}/skip", &[]).await;
    operator.wait_for("state", "Skipped").await;

    fill::plant_failed_event(site, 2).await;
    operator.open(failed).await;
    operator.act("POST /outbox/retry", &[]).await;
    wait_for_job(operator).await;
    operator.open(failed).await;
    operator.wait_for("causes", "subject").await;
    operator.act("POST /outbox/skip", &[]).await;
    wait_for_job(operator).await;
    operator.open("/console/pipeline").await;
    operator.wait_for("now", "No event has failed.").await;

    operator.open("/console/pipeline?state=published").await;
    operator.act("POST /outbox/republish", &[("since", "2026-03-01T12:00:00Z")]).await;
    wait_for_job(operator).await;
}

pub(super) async fn dead_letters(site: &Site, operator: &Operator<'_>, filled: &Filled) {
    let letters = "/console/dead-letters";
    site.receiver.set_partner(StatusCode::OK);
    operator.open("/console/webhooks").await;
    operator.act_on("POST /webhooks/{name}/test", "p.name=partner", &[]).await;
    operator.act_on("POST /webhooks/{name}/enable", "p.name=partner", &[]).await;

    operator.open(letters).await;
    let ids = operator.browser.attributes("#letters td .id[href*=dead-letters]", "href").await;
    operator.open(&ids[0]).await;
    operator.act("POST /dlq/{letter}/replay", &[]).await;
    operator.open(&ids[1]).await;
    operator.open_dialog("POST /dlq/{letter}/discard", "").await;
    operator.browser.click("dialog [data-cancel]").await;
    assert!(!operator.browser.has("dialog").await, "the dialog is closed");
    let id = shown_id(operator).await;
    operator.open(letters).await;
    operator.act_on("POST /dlq/{letter}/discard", &format!("p.letter={id}"), &[]).await;
    operator.browser.wait_for(&format!("section:not(:has([href*='{id}']))#letters"), PATIENCE).await;

    // The rate leaves time to stop the job.
    operator.act("POST /dlq/replay", &[("rate", "1")]).await;
    operator.wait_for("progress", "Running").await;
    operator.act("POST /jobs/{job_id}/stop", &[]).await;
    operator.wait_for("progress", "Stopped").await;
    let stopped = shown_id(operator).await;

    operator.open("/console/webhooks").await;
    operator.act("POST /webhooks/{name}/recover", &[("since", "2026-03-01T12:00:00Z")]).await;
    wait_for_job(operator).await;
    // The test message is the first one.
    eventually("the partner has what it missed", PATIENCE, async || site.receiver.delivered() > 1).await;
    operator.open(&format!("/console/jobs/{stopped}")).await;
    operator.act("POST /jobs/{job_id}/resume", &[]).await;
    wait_for_job(operator).await;

    site.receiver.set_partner(StatusCode::GONE);
    fill::notify(site, &filled.ada, "partner").await;
    operator.open(letters).await;
    operator.wait_for("letters", "it answered 410 Gone").await;
    operator.act("POST /dlq/discard", &[]).await;
    wait_for_job(operator).await;
}

pub(super) async fn broadcasts(site: &Site, operator: &Operator<'_>) {
    operator.open("/console/broadcasts").await;
    operator.browser.fill("#draft [name=title]", "Maintenance tonight").await;
    operator.browser.click("#draft button").await;
    operator.wait_for("draft", "Players who will get it").await;
    operator.act("POST /broadcasts", &[]).await;
    operator.open("/console/broadcasts").await;
    operator.browser.click("#broadcasts td a").await;
    operator.wait_for("progress", "Sent").await;
    // Continues in a year, so that there is time to stop it.
    site.sql("UPDATE notification_broadcast SET state = 0, due_at = due_at + 31536000000").await;
    operator.browser.wait_for(&link("POST /broadcasts/{broadcast}/stop", ""), PATIENCE).await;
    operator.act("POST /broadcasts/{broadcast}/stop", &[]).await;
    operator.wait_for("progress", "Stopped").await;
    operator.act("POST /broadcasts/{broadcast}/resume", &[]).await;
    operator.wait_for("progress", "Sent").await;
}

//! Actions about tickets and game servers.

use super::super::fill;
use super::*;

/// A ticket of the queue `raid` is pending while the game keeps the request for its server waiting.
pub(super) async fn tickets(site: &Site, operator: &Operator<'_>, filled: &Filled) {
    fill::join(site, &site.player("ken").await, "raid").await;
    let ticket = fill::join(site, &filled.ada, "raid").await;
    operator.open(&format!("/console/tickets/{ticket}")).await;
    operator.act("POST /tickets/{ticket_id}/release", &[]).await;
    site.receiver.release_game();

    operator.open(&format!("/console/matchmaking?search={}", filled.waiting.user)).await;
    operator.browser.click("#search td .id").await;
    operator.wait_for("ticket", "Waiting").await;
    operator.act("DELETE /tickets/{ticket_id}", &[]).await;
    operator.open(&format!("/console/matchmaking?search={}", filled.waiting.user)).await;
    operator.wait_for("search", "no player with this id waits").await;
}

/// A queue that no other step uses is changed and removed, and comes back.
pub(super) async fn definitions(operator: &Operator<'_>) {
    operator.open("/console/rules").await;
    operator.wait_for("definitions", "configuration file").await;
    let spare = "/console/rules/queue/raid";
    operator.open(spare).await;
    operator.act("PUT /definitions/{kind}/{name}", &[("text", "tags = [\"beta\"]")]).await;
    operator.wait_for("definition", "tags = [\"beta\"]").await;
    operator.wait_for("history", "reason").await;
    operator.act("DELETE /definitions/{kind}/{name}", &[]).await;
    operator.wait_for("definition", "It is removed.").await;
    operator.act_on("POST /definitions/{kind}/{name}/rollback", "f.version=0", &[]).await;
    operator.wait_for("definition", "configuration file").await;
    operator.open(&format!("{spare}?from=1&to=2")).await;
    operator.wait_for("difference", "-tags = [\"beta\"]").await;
}

/// The game has refused servers, and refuses to take them back.
pub(super) async fn allocations(operator: &Operator<'_>) {
    let failed = "/console/allocations?state=failed";
    operator.open(failed).await;
    operator.act("POST /allocations/retry", &[]).await;
    operator.open(failed).await;
    operator.wait_for("calls", "403").await;
    operator.act("POST /allocations/{match}/retry", &[]).await;
    operator.open(failed).await;
    operator.act("POST /allocations/{match}/skip", &[]).await;
    operator.open("/console/allocations?state=skipped").await;
    operator.wait_for("calls", "Skipped").await;
}

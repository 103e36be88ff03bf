//! Actions about drops and orders.

use super::*;

/// The fields of a new drop that have no default.
const NEW: [(&str, &str); 10] = [
    ("resource", "skin:season"),
    ("stock", "5"),
    ("terms.price.amount", "1999"),
    ("terms.price.currency", "EUR"),
    ("terms.per_player", "1"),
    ("terms.admission.batch", "2"),
    ("terms.admission.capacity", "20"),
    ("terms.admission.lifetime_ms", "600000"),
    ("terms.admission.arrive_within_ms", "60000"),
    ("terms.reservation_ms", "300000"),
];

pub(super) async fn all(operator: &Operator<'_>, filled: &Filled) {
    create(operator, "Summer skins").await;
    operator.act("POST /drops/{drop_id}/schedule", &[("opens_at", "2030-12-01T18:00:00Z")]).await;
    operator.wait_for("now", "Scheduled").await;
    operator.act("PUT /drops/{drop_id}/terms", &[("price.amount", "1499")]).await;
    operator.wait_for("terms", "1499").await;
    operator.act("PUT /drops/{drop_id}/pace", &[("capacity", "30")]).await;
    operator.wait_for("terms", "\"capacity\": 30").await;
    operator.act("PUT /drops/{drop_id}/message", &[("message", "Nearly there")]).await;
    operator.wait_for("now", "Nearly there").await;
    operator.act("PUT /drops/{drop_id}/everyone-waits", &[]).await;
    operator.wait_for("now", "Everyone waits").await;
    operator.act("POST /drops/{drop_id}/open", &[]).await;
    operator.wait_for("now", "Open").await;
    operator.act("POST /drops/{drop_id}/pause", &[]).await;
    operator.wait_for("now", "Paused").await;
    operator.act("POST /drops/{drop_id}/resume", &[]).await;
    operator.act("POST /drops/{drop_id}/stock", &[("by", "-2"), ("reason", "damaged")]).await;
    operator.wait_for("ledger", "damaged").await;
    operator.act("POST /drops/{drop_id}/rebuild", &[]).await;
    operator.act("POST /drops/{drop_id}/close", &[]).await;
    operator.wait_for("now", "Closed").await;

    create(operator, "Winter skins").await;
    operator.act("POST /drops/{drop_id}/cancel", &[]).await;
    operator.wait_for("now", "Cancelled").await;

    operator.open(&format!("/console/drops/{}", filled.drop)).await;
    operator.wait_for("refunds", "paid twice").await;
    operator.act("POST /orders/{order_id}/settle", &[]).await;
    operator.browser.wait_for("main:not(:has(#refunds))", PATIENCE).await;
}

/// Creates a drop and opens its page.
async fn create(operator: &Operator<'_>, name: &str) {
    operator.open("/console/drops").await;
    let fields: Vec<(&str, &str)> = [("name", name)].into_iter().chain(NEW).collect();
    operator.act("POST /drops", &fields).await;
    operator.wait_for("all", name).await;
    operator.browser.click("#all td a").await;
    operator.wait_for("now", "Draft").await;
}

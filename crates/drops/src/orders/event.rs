//! The events of orders.

use base::Timestamp;
use bus::{Event, EventId, EventKind, Json};
use serde::Serialize;
use utoipa::{PartialSchema, ToSchema};

use super::model::{Order, OrderState};

const CREATED: &str = "playhouse.order.created.v1";
const PAID: &str = "playhouse.order.paid.v1";
const REFUND_DUE: &str = "playhouse.order.refund_due.v1";
const FAILED: &str = "playhouse.order.failed.v1";
const REFUNDED: &str = "playhouse.order.refunded.v1";

/// The data of all events of an order: the order after the change.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OrderChanged {
    pub order_id: String,
    pub drop_id: String,
    pub reservation_id: String,
    pub user_id: String,
    pub account_id: String,
    /// PENDING, PAID, REFUND_DUE, FAILED or REFUNDED.
    pub state: String,
    pub quantity: i64,
    /// In the smallest unit of the currency.
    pub amount: i64,
    /// ISO 4217.
    pub currency: String,
    /// Counts up by one with every event of the order. Of two, the larger one is true.
    pub version: i64,
}

/// Every kind of event of an order.
pub fn events() -> Vec<EventKind> {
    // It is made of plain values.
    let schema = serde_json::to_value(OrderChanged::schema()).unwrap_or_default();
    let kind = |kind, summary| EventKind { kind, summary, key: "order/{order_id}", schema: schema.clone() };
    vec![
        kind(CREATED, "A player goes on to pay for reserved units."),
        kind(PAID, "The payment succeeded: the units are sold and the account owns them."),
        kind(
            REFUND_DUE,
            "The payment succeeded and there is nothing to give for it: an operator must refund it.",
        ),
        kind(FAILED, "The payment failed: the reservation is released."),
        kind(
            REFUNDED,
            "The payment was refunded: the entitlement is revoked and the units are available again.",
        ),
    ]
}

/// The event of an order's latest change.
pub(super) fn of(order: &Order, now: Timestamp) -> Result<Event, serde_json::Error> {
    let kind = match order.state {
        OrderState::Pending => CREATED,
        OrderState::Paid => PAID,
        OrderState::RefundDue => REFUND_DUE,
        OrderState::Failed => FAILED,
        OrderState::Refunded => REFUNDED,
    };
    let data = OrderChanged {
        order_id: order.id.to_string(),
        drop_id: order.drop.to_string(),
        reservation_id: order.reservation.to_string(),
        user_id: order.user.to_string(),
        account_id: order.account.to_string(),
        state: order.state.word().to_owned(),
        quantity: order.quantity,
        amount: order.amount,
        currency: order.currency.clone(),
        version: order.version,
    };
    Ok(Event {
        id: EventId::generate(),
        subject: kind.trim_start_matches("playhouse.").to_owned(),
        kind: kind.to_owned(),
        source: "/playhouse/drops".to_owned(),
        time: now,
        key: Some(format!("order/{}", order.id)),
        traceparent: runtime::telemetry::TraceContext::current().traceparent().map(str::to_owned),
        data: Json::of(&data)?,
    })
}

//! The events of orders.

use base::Timestamp;
use bus::{Event, EventId, EventKind, Json};
use serde::Serialize;
use utoipa::{PartialSchema, ToSchema};

use super::model::{Order, OrderState, SurplusState};
use crate::event::SOURCE;

const CREATED: &str = "playhouse.order.created.v1";
const PAID: &str = "playhouse.order.paid.v1";
const REFUND_DUE: &str = "playhouse.order.refund_due.v1";
const FAILED: &str = "playhouse.order.failed.v1";
const REFUNDED: &str = "playhouse.order.refunded.v1";
const SURPLUS_REFUND_DUE: &str = "playhouse.payment.refund_due.v1";
const SURPLUS_REFUNDED: &str = "playhouse.payment.refunded.v1";

/// The data of all events of an order: the order after the change.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OrderChanged {
    pub order_id: String,
    pub drop_id: String,
    pub reservation_id: String,
    pub user_id: String,
    pub account_id: String,
    /// What a unit is: the resource that the account is granted.
    pub resource: String,
    /// PENDING, PAID, REFUND_DUE, FAILED or REFUNDED.
    pub state: String,
    pub quantity: i64,
    /// In the smallest unit of the currency.
    pub amount: i64,
    /// ISO 4217.
    pub currency: String,
    /// Incremented with every event of the order. The larger of two versions is newer.
    pub version: i64,
}

/// The data of an event about a surplus payment: one that succeeded for an order that was already paid.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PaymentChanged {
    /// The provider's id of the payment.
    pub payment_id: String,
    pub order_id: String,
    pub drop_id: String,
    pub user_id: String,
    pub account_id: String,
    /// REFUND_DUE or REFUNDED.
    pub state: String,
    /// In the smallest unit of the currency.
    pub amount: i64,
    /// ISO 4217.
    pub currency: String,
}

/// Returns every kind of event of orders and of their payments.
pub fn events() -> Vec<EventKind> {
    // Both schemas consist of plain values, so serializing them cannot fail.
    let schema = serde_json::to_value(OrderChanged::schema()).unwrap_or_default();
    let payment_schema = serde_json::to_value(PaymentChanged::schema()).unwrap_or_default();
    let payment = |kind, summary| EventKind {
        kind,
        summary,
        key: "payment/{order_id}/{payment_id}",
        schema: payment_schema.clone(),
    };
    let kind = |kind, summary| EventKind { kind, summary, key: "order/{order_id}", schema: schema.clone() };
    vec![
        kind(CREATED, "A player created an order for reserved units."),
        kind(PAID, "The payment succeeded: the units are sold and the account owns them."),
        kind(REFUND_DUE, "The payment succeeded, but no units can be delivered: an operator must refund it."),
        kind(FAILED, "The payment failed: the reservation is released."),
        kind(
            REFUNDED,
            "The payment was refunded: the entitlement is revoked and the units are available again.",
        ),
        payment(
            SURPLUS_REFUND_DUE,
            "A second payment succeeded for an order that was already paid: an operator must refund it.",
        ),
        payment(SURPLUS_REFUNDED, "A second payment for an order was refunded."),
    ]
}

/// Builds the event of an order's latest change.
pub(super) fn order_event(
    order: &Order,
    resource: &str,
    trace: Option<&str>,
    now: Timestamp,
) -> Result<Event, serde_json::Error> {
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
        resource: resource.to_owned(),
        state: order.state.as_str().to_owned(),
        quantity: order.quantity,
        amount: order.amount,
        currency: order.currency.clone(),
        version: order.version,
    };
    let key = format!("order/{}", order.id);
    Ok(event(kind, key, Json::from_value(&data)?, trace, now))
}

/// Builds the event of a surplus payment's latest change.
pub(super) fn surplus_event(
    order: &Order,
    payment: &str,
    state: SurplusState,
    trace: Option<&str>,
    now: Timestamp,
) -> Result<Event, serde_json::Error> {
    let kind = match state {
        SurplusState::RefundDue => SURPLUS_REFUND_DUE,
        SurplusState::Refunded => SURPLUS_REFUNDED,
    };
    let data = PaymentChanged {
        payment_id: payment.to_owned(),
        order_id: order.id.to_string(),
        drop_id: order.drop.to_string(),
        user_id: order.user.to_string(),
        account_id: order.account.to_string(),
        state: state.as_str().to_owned(),
        amount: order.amount,
        currency: order.currency.clone(),
    };
    let key = format!("payment/{}/{payment}", order.id);
    Ok(event(kind, key, Json::from_value(&data)?, trace, now))
}

fn event(kind: &str, key: String, data: Json, trace: Option<&str>, now: Timestamp) -> Event {
    Event {
        id: EventId::generate(),
        subject: kind.trim_start_matches("playhouse.").to_owned(),
        kind: kind.to_owned(),
        source: SOURCE.to_owned(),
        time: now,
        key: Some(key),
        traceparent: trace.map(str::to_owned),
        data,
    }
}

//! Everything that drops know about a user, for the export.

use account::UserId;
use base::Timestamp;
use base::page::read_all;
use http_server::Problem;
use serde_json::{Value, json};
use service::PlayerData;

use super::{DropsConsole, database_problem, store};
use crate::OrderId;
use crate::orders::store::{DatedOrder, SurplusPayment, WhichOrders};
use crate::stock::Reservation;
use crate::store::PlayerEntry;

/// How many rows one query reads.
const PAGE: u32 = 1_000;

/// Returns what drops know about users.
pub(crate) fn player_data() -> Vec<PlayerData> {
    let export = |console: DropsConsole, user| async move { export(&console, UserId::from_uuid(user)).await };
    vec![PlayerData::new("drops", export)]
}

async fn export(console: &DropsConsole, user: UserId) -> Result<Value, Problem> {
    let db = console.db();
    let entries = read_all(
        PAGE,
        |last: &PlayerEntry| (last.entry.joined_at, last.drop),
        |before| store::entries_of_user(db, user, before, PAGE),
    );
    let reservations = read_all(
        PAGE,
        |last: &Reservation| last.id,
        |before| store::reservations_of_user(db, user, before, PAGE),
    );
    let orders = read_all(
        PAGE,
        |last: &DatedOrder| last.order.id,
        |before| store::orders(db, WhichOrders::User { user, before }, PAGE),
    );
    let (entries, reservations) =
        (entries.await.map_err(database_problem)?, reservations.await.map_err(database_problem)?);
    let orders = orders.await.map_err(database_problem)?;
    let surplus = store::surplus_of_user(db, user).await.map_err(database_problem)?;
    Ok(json!({
        "entries": entries.iter().map(entry).collect::<Vec<_>>(),
        "reservations": reservations.iter().map(reservation).collect::<Vec<_>>(),
        "orders": orders.iter().map(|dated| order(dated, &surplus)).collect::<Vec<_>>(),
    }))
}

fn entry(PlayerEntry { drop, drop_name, entry, .. }: &PlayerEntry) -> Value {
    json!({
        "drop_id": drop.to_string(), "drop": drop_name, "account_id": entry.account.to_string(), "state": entry.state.as_str(),
        "left_reason": entry.left_reason.map(|reason| reason.as_str()), "number": entry.number,
        "joined_at": entry.joined_at.to_rfc3339(), "entered_at": time(entry.entered_at),
        "arrived_at": time(entry.arrived_at), "expires_at": time(entry.expires_at),
    })
}

fn reservation(reservation: &Reservation) -> Value {
    json!({
        "reservation_id": reservation.id.to_string(), "drop_id": reservation.drop.to_string(), "account_id": reservation.account.to_string(),
        "state": reservation.state.as_str(), "quantity": reservation.quantity, "owned": reservation.confirmed,
        "reserved_at": reservation.reserved_at.to_rfc3339(), "expires_at": reservation.expires_at.to_rfc3339(),
    })
}

fn order(DatedOrder { order, changed_at }: &DatedOrder, surplus: &[SurplusPayment]) -> Value {
    json!({
        "order_id": order.id.to_string(), "drop_id": order.drop.to_string(), "reservation_id": order.reservation.to_string(),
        "account_id": order.account.to_string(), "state": order.state.as_str(), "quantity": order.quantity,
        "amount": order.amount, "currency": order.currency, "payment_id": order.payment,
        "granted_at": time(order.granted_at), "created_at": order.created_at.to_rfc3339(),
        "changed_at": changed_at.to_rfc3339(), "surplus_payments": surplus_of(order.id, surplus),
    })
}

/// Returns the further payments for an order that was already paid.
fn surplus_of(order: OrderId, surplus: &[SurplusPayment]) -> Vec<Value> {
    let own = surplus.iter().filter(|payment| payment.order == order);
    let payment = |payment: &SurplusPayment| {
        json!({
            "payment_id": payment.payment, "state": payment.state.as_str(),
            "received_at": payment.received_at.to_rfc3339(),
        })
    };
    own.map(payment).collect()
}

fn time(at: Option<Timestamp>) -> Option<String> {
    at.map(Timestamp::to_rfc3339)
}

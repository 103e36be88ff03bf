//! Surplus payments: they succeeded for an order that was already paid.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Error, Tx};
use sqlx::AssertSqlSafe;

use super::{COLUMNS, OrderRow, find, number, read, uuid};
use crate::OrderId;
use crate::orders::model::{OrderState, SurplusState};
use crate::orders::refunds::{ListRefunds, RefundDue};
use crate::stock::store::{bytes, locking};

const ADD: &str = "INSERT INTO drop_surplus_payments (order_id, payment, state, received_at)";
const STATE: &str = "SELECT state FROM drop_surplus_payments WHERE order_id = ? AND payment = ?";
const REFUND: &str = "UPDATE drop_surplus_payments SET state = 1, settled_by = ?, settled_at = {now} WHERE order_id = ? AND payment = ?";
const DUE: &str = "SELECT s.order_id, s.payment, s.received_at FROM drop_surplus_payments s \
    JOIN drop_orders o ON o.order_id = s.order_id WHERE s.state = 0 AND {of_drop}(s.received_at > ? OR s.received_at = ? \
    AND (s.order_id > ? OR s.order_id = ? AND s.payment > ?)) ORDER BY s.received_at, s.order_id, s.payment LIMIT ?";
const OWN_DUE: &str = "WHERE {of_drop}state = ? AND (changed_at > ? OR changed_at = ? AND order_id > ?) \
    ORDER BY changed_at, order_id LIMIT ?";
const OF_USER: &str = "SELECT s.order_id, s.payment, s.state, s.received_at FROM drop_orders o \
    JOIN drop_surplus_payments s ON s.order_id = o.order_id WHERE o.user_id = ? ORDER BY s.received_at, s.payment";
/// Only refunded ones: the others must still be refunded, by the provider's id.
const FORGET: &str = "DELETE FROM drop_surplus_payments WHERE state = 1 AND order_id IN \
    (SELECT order_id FROM drop_orders WHERE user_id = ?)";

/// Inserts a payment that must be refunded, at the commit.
pub(crate) fn add_surplus(tx: &mut Tx, order: OrderId, payment: &str) {
    tx.insert_at_commit(ADD, [[order.as_uuid().into(), payment.into(), 0.into(), db::Value::Now]]);
}

/// Reads the state of a surplus payment and locks its row until the transaction ends.
pub(crate) async fn lock_surplus(
    tx: &mut Tx,
    order: OrderId,
    payment: &str,
) -> Result<Option<SurplusState>, Error> {
    let text = locking(tx.dialect(), STATE, " FOR UPDATE");
    let state: Option<i32> = db::on!(tx, connection => {
        sqlx::query_scalar(AssertSqlSafe(text))
            .bind(bytes(order.as_uuid()))
            .bind(payment)
            .fetch_optional(connection)
            .await?
    });
    Ok(state.map(surplus_state))
}

/// Marks a surplus payment as refunded: by the provider, or by an operator.
pub(crate) async fn refund_surplus(
    tx: &mut Tx,
    order: OrderId,
    payment: &str,
    settled_by: Option<&str>,
) -> Result<(), Error> {
    let text = REFUND.replace("{now}", tx.dialect().now());
    db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(text))
            .bind(settled_by)
            .bind(bytes(order.as_uuid()))
            .bind(payment)
            .execute(connection)
            .await?;
    });
    Ok(())
}

/// Reads the surplus payments that must be refunded, the oldest first.
pub(crate) async fn surplus_due(
    connection: &mut Conn,
    which: &ListRefunds,
    limit: u32,
) -> Result<Vec<RefundDue>, Error> {
    let text = AssertSqlSafe(DUE.replace("{of_drop}", of_drop("o.drop_id = ? AND ", which)));
    let (since, order, payment) = place(which);
    let rows: Vec<(Vec<u8>, String, i64)> = db::on!(connection, raw => {
        let mut query = sqlx::query_as(text);
        if let Some(drop) = &which.drop {
            query = query.bind(bytes(drop.as_uuid()));
        }
        let query = query.bind(since).bind(since).bind(bytes(&order)).bind(bytes(&order)).bind(payment);
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    let mut due = Vec::with_capacity(rows.len());
    for (order, payment, received_at) in rows {
        // There are few of them, so one query per order is fine.
        if let Some(order) = find(connection, OrderId::from_uuid(uuid(&order))).await? {
            due.push(RefundDue {
                order,
                payment,
                is_surplus: true,
                since: Timestamp::from_millis(received_at),
            });
        }
    }
    Ok(due)
}

/// Reads the orders whose own payment must be refunded, the longest due first. Those of a drop or a state have an index; they are few.
pub(crate) async fn own_refunds_due(
    connection: &mut Conn,
    which: &ListRefunds,
    limit: u32,
) -> Result<Vec<RefundDue>, Error> {
    let text = AssertSqlSafe(format!(
        "{COLUMNS}{}",
        OWN_DUE.replace("{of_drop}", of_drop("drop_id = ? AND ", which))
    ));
    let (since, order, _) = place(which);
    let rows: Vec<OrderRow> = db::on!(connection, raw => {
        let mut query = sqlx::query_as(text);
        if let Some(drop) = &which.drop {
            query = query.bind(bytes(drop.as_uuid()));
        }
        let query = query.bind(number(OrderState::RefundDue)).bind(since).bind(since).bind(bytes(&order));
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    let due = |row: OrderRow| {
        let (since, order) = (Timestamp::from_millis(row.changed_at), read(row));
        RefundDue { payment: order.payment.clone().unwrap_or_default(), order, is_surplus: false, since }
    };
    Ok(rows.into_iter().map(due).collect())
}

/// Returns a condition if refunds of only one drop are listed.
const fn of_drop(condition: &'static str, which: &ListRefunds) -> &'static str {
    if which.drop.is_some() { condition } else { "" }
}

/// Returns the time, the order and the payment after which a page begins.
fn place(which: &ListRefunds) -> (i64, Uuid, &str) {
    match &which.after {
        Some(after) => (after.since.as_millis(), *after.order.as_uuid(), &after.surplus),
        None => (i64::MIN, Uuid::nil(), ""),
    }
}

/// A surplus payment for an order.
#[derive(Clone, Debug)]
pub(crate) struct SurplusPayment {
    pub(crate) order: OrderId,
    /// The provider's id of the payment.
    pub(crate) payment: String,
    pub(crate) state: SurplusState,
    pub(crate) received_at: Timestamp,
}

/// Reads the surplus payments for a user's orders, the oldest first.
pub(crate) async fn surplus_of_user(
    connection: &mut Conn,
    user: UserId,
) -> Result<Vec<SurplusPayment>, Error> {
    let rows: Vec<(Vec<u8>, String, i32, i64)> = db::on!(connection, raw => {
        sqlx::query_as(OF_USER).bind(bytes(user.as_uuid())).fetch_all(raw).await?
    });
    let payment = |(order, payment, state, received_at): (Vec<u8>, String, i32, i64)| SurplusPayment {
        order: OrderId::from_uuid(uuid(&order)),
        payment,
        state: surplus_state(state),
        received_at: Timestamp::from_millis(received_at),
    };
    Ok(rows.into_iter().map(payment).collect())
}

const fn surplus_state(number: i32) -> SurplusState {
    if number == 0 { SurplusState::RefundDue } else { SurplusState::Refunded }
}

/// Removes the refunded payments of a user. Those that must be refunded stay.
pub(super) async fn forget_user(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    db::on!(tx, connection => {
        sqlx::query(FORGET).bind(bytes(user.as_uuid())).execute(connection).await?;
    });
    Ok(())
}

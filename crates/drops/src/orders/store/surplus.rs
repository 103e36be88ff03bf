//! Surplus payments: they succeeded for an order that was already paid.

use account::UserId;
use base::Timestamp;
use db::{Conn, Error, Tx};
use sqlx::AssertSqlSafe;

use super::{find, uuid};
use crate::OrderId;
use crate::orders::model::{RefundDue, SurplusState};
use crate::stock::store::{bytes, locking};

const ADD: &str = "INSERT INTO drop_surplus_payments (order_id, payment, state, received_at)";
const STATE: &str = "SELECT state FROM drop_surplus_payments WHERE order_id = ? AND payment = ?";
const REFUND: &str = "UPDATE drop_surplus_payments SET state = 1, settled_by = ?, settled_at = {now} WHERE order_id = ? AND payment = ?";
const DUE: &str = "SELECT order_id, payment, received_at FROM drop_surplus_payments WHERE state = 0 \
    ORDER BY received_at, order_id LIMIT ?";
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
    Ok(state.map(|state| if state == 0 { SurplusState::RefundDue } else { SurplusState::Refunded }))
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
pub(crate) async fn surplus_due(connection: &mut Conn, limit: u32) -> Result<Vec<RefundDue>, Error> {
    let rows: Vec<(Vec<u8>, String, i64)> = db::on!(connection, raw => {
        sqlx::query_as(DUE).bind(i64::from(limit)).fetch_all(raw).await?
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

/// Removes the refunded payments of a user. Those that must be refunded stay.
pub(super) async fn forget_user(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    db::on!(tx, connection => {
        sqlx::query(FORGET).bind(bytes(user.as_uuid())).execute(connection).await?;
    });
    Ok(())
}

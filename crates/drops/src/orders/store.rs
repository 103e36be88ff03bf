//! The tables of orders, surplus payments and received webhooks.

mod shown;
mod surplus;
mod webhooks;

use std::collections::HashSet;

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Error, InsertText, Tx, Value};
use sqlx::AssertSqlSafe;

use super::model::{ListOrders, Order, OrderState};
use crate::stock::store::{bytes, locking, uuid};
use crate::{DropId, OrderId, ReservationId};

pub(crate) use shown::{DatedOrder, WhichOrders, count_in_state, dated};
pub(crate) use surplus::{
    SurplusPayment, add_surplus, lock_surplus, own_refunds_due, refund_surplus, surplus_due, surplus_of_user,
};
pub(crate) use webhooks::{add_webhooks, find_webhook, prune_webhooks, received_webhooks};

const COLUMNS: &str = "SELECT order_id, drop_id, reservation_id, user_id, account_id, state, quantity, amount, currency, payment, \
    granted_at, settled_by, created_at, changed_at, version FROM drop_orders ";
const BY_ID: &str = "WHERE order_id = ?";
const BY_IDS: &str = "WHERE order_id IN ({list})";
const BY_RESERVATION: &str = "WHERE reservation_id = ?";
const ORDERED: &str = "SELECT reservation_id FROM drop_orders WHERE reservation_id IN ({list})";
/// Ids are in creation order.
const BY_USER: &str = "WHERE user_id = ? AND order_id < ? ORDER BY order_id DESC LIMIT ?";
const BY_STATE: &str = "WHERE state = ? AND order_id > ? ORDER BY order_id LIMIT ?";
const BY_STATE_OF_DROP: &str = "WHERE state = ? AND order_id > ? AND drop_id = ? ORDER BY order_id LIMIT ?";
const FOR_UPDATE: &str = " FOR UPDATE";
/// A group never waits for a row lock.
const SKIP_LOCKED: &str = " FOR UPDATE SKIP LOCKED";

const ADD: &str = "INSERT INTO drop_orders (order_id, drop_id, reservation_id, user_id, account_id, state, quantity, amount, currency, \
    payment, granted_at, settled_by, created_at, changed_at, version)";
const CHANGE_SQLITE: &str = " ON CONFLICT (order_id) DO UPDATE SET state = excluded.state, payment = excluded.payment, \
    granted_at = excluded.granted_at, settled_by = excluded.settled_by, changed_at = excluded.changed_at, version = excluded.version";
const CHANGE_MYSQL: &str = " ON DUPLICATE KEY UPDATE state = VALUES(state), payment = VALUES(payment), \
    granted_at = VALUES(granted_at), settled_by = VALUES(settled_by), changed_at = VALUES(changed_at), version = VALUES(version)";

/// Removes the payment id, too, unless the payment must still be refunded.
const FORGET_USER: &str = "UPDATE drop_orders SET user_id = ?, account_id = ?, \
    payment = CASE WHEN state = 2 THEN payment ELSE NULL END WHERE user_id = ?";

db::row! {
    struct OrderRow {
        order_id: Vec<u8>,
        drop_id: Vec<u8>,
        reservation_id: Vec<u8>,
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        state: i32,
        quantity: i64,
        amount: i64,
        currency: String,
        payment: Option<String>,
        granted_at: Option<i64>,
        settled_by: Option<String>,
        created_at: i64,
        changed_at: i64,
        version: i64,
    }
}

/// Inserts orders at the commit.
pub(crate) fn add<'a>(tx: &mut Tx, orders: impl IntoIterator<Item = &'a Order>) {
    tx.insert_at_commit(ADD, orders.into_iter().map(row));
}

/// Writes the state of orders at the commit. The transaction has locked their rows.
pub(crate) fn save<'a>(tx: &mut Tx, orders: impl IntoIterator<Item = &'a Order>) {
    let text = InsertText { head: ADD, tail: tx.dialect().pick(CHANGE_SQLITE, CHANGE_MYSQL) };
    tx.upsert_at_commit(text, orders.into_iter().map(row));
}

fn row(order: &Order) -> [Value<'_>; 15] {
    [
        order.id.as_uuid().into(),
        order.drop.as_uuid().into(),
        order.reservation.as_uuid().into(),
        order.user.as_uuid().into(),
        order.account.as_uuid().into(),
        number(order.state).into(),
        order.quantity.into(),
        order.amount.into(),
        order.currency.as_str().into(),
        order.payment.as_deref().into(),
        order.granted_at.into(),
        order.settled_by.as_deref().into(),
        order.created_at.into(),
        Value::Now,
        order.version.into(),
    ]
}

/// Reads an order.
pub(crate) async fn find(connection: &mut Conn, id: OrderId) -> Result<Option<Order>, Error> {
    let text = format!("{COLUMNS}{BY_ID}");
    let row: Option<OrderRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(raw).await?
    });
    Ok(row.map(read))
}

/// Reads an order and locks its row until the transaction ends.
pub(crate) async fn lock(tx: &mut Tx, id: OrderId) -> Result<Option<Order>, Error> {
    let text = locking(tx.dialect(), &format!("{COLUMNS}{BY_ID}"), FOR_UPDATE);
    let row: Option<OrderRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    Ok(row.map(read))
}

/// Reads and locks these orders until the transaction ends, skipping rows that another transaction has locked. `ids` must not be empty.
pub(crate) async fn lock_available(tx: &mut Tx, ids: &[OrderId]) -> Result<Vec<Order>, Error> {
    let text = locking(tx.dialect(), &format!("{COLUMNS}{BY_IDS}"), SKIP_LOCKED);
    let ids: Vec<&[u8]> = ids.iter().map(|id| bytes(id.as_uuid())).collect();
    let (text, padding) = db::list_text(&text, ids.len());
    let rows: Vec<OrderRow> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Returns the reservations among `ids` that have an order. The transaction has locked their rows. `ids` must not be empty.
pub(crate) async fn reservations_with_orders(
    tx: &mut Tx,
    ids: &[ReservationId],
) -> Result<HashSet<ReservationId>, Error> {
    let ids: Vec<&[u8]> = ids.iter().map(|id| bytes(id.as_uuid())).collect();
    let (text, padding) = db::list_text(ORDERED, ids.len());
    let rows: Vec<Vec<u8>> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_scalar(text), ids, padding).fetch_all(connection).await?
    });
    Ok(rows.iter().map(|id| ReservationId::from_uuid(uuid(id))).collect())
}

/// Reads the order for a reservation whose row the transaction has locked.
pub(crate) async fn find_by_reservation(tx: &mut Tx, id: ReservationId) -> Result<Option<Order>, Error> {
    let text = format!("{COLUMNS}{BY_RESERVATION}");
    let row: Option<OrderRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    Ok(row.map(read))
}

/// Reads a user's orders that are older than `before`, the newest first.
pub(crate) async fn orders_of_user(
    connection: &mut Conn,
    user: UserId,
    before: Option<OrderId>,
    limit: u32,
) -> Result<Vec<Order>, Error> {
    let text = format!("{COLUMNS}{BY_USER}");
    let before = before.map_or(Uuid::max(), |id| *id.as_uuid());
    let rows: Vec<OrderRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text))
            .bind(bytes(user.as_uuid()))
            .bind(bytes(&before))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads orders in a state, the oldest first, each with the time of its last change.
pub(crate) async fn in_state(
    connection: &mut Conn,
    which: ListOrders,
) -> Result<Vec<(Order, Timestamp)>, Error> {
    let ListOrders { state, drop, after, limit } = which;
    let text = format!("{COLUMNS}{}", if drop.is_some() { BY_STATE_OF_DROP } else { BY_STATE });
    let after = after.map_or(Uuid::nil(), |id| *id.as_uuid());
    let rows: Vec<OrderRow> = db::on!(connection, raw => {
        let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(number(state)).bind(bytes(&after));
        if let Some(drop) = &drop {
            query = query.bind(bytes(drop.as_uuid()));
        }
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    let dated = |row: OrderRow| (Timestamp::from_millis(row.changed_at), row);
    Ok(rows.into_iter().map(dated).map(|(since, row)| (read(row), since)).collect())
}

/// Removes a user from their orders. The orders stay, since the stock's counts are their sums.
pub(crate) async fn forget_user(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    let erased = Uuid::nil();
    surplus::forget_user(tx, user).await?;
    db::on!(tx, connection => {
        sqlx::query(FORGET_USER)
            .bind(bytes(&erased))
            .bind(bytes(&erased))
            .bind(bytes(user.as_uuid()))
            .execute(connection)
            .await?;
    });
    Ok(())
}

fn read(row: OrderRow) -> Order {
    Order {
        id: OrderId::from_uuid(uuid(&row.order_id)),
        drop: DropId::from_uuid(uuid(&row.drop_id)),
        reservation: ReservationId::from_uuid(uuid(&row.reservation_id)),
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: AccountId::from_uuid(uuid(&row.account_id)),
        state: match row.state {
            0 => OrderState::Pending,
            1 => OrderState::Paid,
            2 => OrderState::RefundDue,
            3 => OrderState::Failed,
            _ => OrderState::Refunded,
        },
        quantity: row.quantity,
        amount: row.amount,
        currency: row.currency,
        payment: row.payment,
        granted_at: row.granted_at.map(Timestamp::from_millis),
        settled_by: row.settled_by,
        created_at: Timestamp::from_millis(row.created_at),
        version: row.version,
    }
}

pub(crate) const fn number(state: OrderState) -> i32 {
    match state {
        OrderState::Pending => 0,
        OrderState::Paid => 1,
        OrderState::RefundDue => 2,
        OrderState::Failed => 3,
        OrderState::Refunded => 4,
    }
}

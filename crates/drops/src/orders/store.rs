//! The tables of orders and of the payment provider's messages.

use account::{AccountId, UserId};
use base::Timestamp;
use db::{Conn, Error, Tx};
use sqlx::AssertSqlSafe;

use super::model::{Notice, Order, OrderState};
use crate::stock::store::{bytes, locking, uuid};
use crate::{DropId, OrderId, ReservationId};

const COLUMNS: &str = "SELECT order_id, drop_id, reservation_id, user_id, account_id, state, quantity, amount, currency, payment, \
    created_at, version FROM drop_orders ";
const BY_ID: &str = "WHERE order_id = ?";
const BY_RESERVATION: &str = "WHERE reservation_id = ?";
const BY_USER: &str = "WHERE user_id = ? ORDER BY created_at DESC, order_id DESC LIMIT ?";
const BY_STATE: &str = "WHERE state = ? ORDER BY changed_at, order_id LIMIT ?";
const FOR_UPDATE: &str = " FOR UPDATE";

const ADD: &str = "INSERT INTO drop_orders (order_id, drop_id, reservation_id, user_id, account_id, state, quantity, amount, currency, \
    payment, created_at, changed_at, version)";
const UPDATE: &str =
    "UPDATE drop_orders SET state = ?, payment = ?, version = ?, changed_at = {now} WHERE order_id = ?";

const MESSAGE: &str = "SELECT order_id, kind FROM drop_payment_webhooks WHERE webhook_id = ?";
const ADD_MESSAGE: &str =
    "INSERT INTO drop_payment_webhooks (webhook_id, order_id, kind, outcome, received_at)";

/// Payments of orders that are settled: nobody needs them any more.
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
        created_at: i64,
        version: i64,
    }
}

/// Adds an order when the transaction is committed.
pub(crate) fn add(tx: &mut Tx, order: &Order) {
    let row = [
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
        order.created_at.into(),
        db::Value::Now,
        order.version.into(),
    ];
    tx.insert_at_commit(ADD, [row]);
}

/// Writes the state of an order whose row the transaction holds.
pub(crate) async fn update(tx: &mut Tx, order: &Order) -> Result<(), Error> {
    let text = UPDATE.replace("{now}", tx.dialect().now());
    db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(text))
            .bind(number(order.state))
            .bind(&order.payment)
            .bind(order.version)
            .bind(bytes(order.id.as_uuid()))
            .execute(connection)
            .await?;
    });
    Ok(())
}

/// Reads an order.
pub(crate) async fn find(connection: &mut Conn, id: OrderId) -> Result<Option<Order>, Error> {
    let text = format!("{COLUMNS}{BY_ID}");
    let row: Option<OrderRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(raw).await?
    });
    Ok(row.map(read))
}

/// Reads an order and holds its row until the transaction ends.
pub(crate) async fn lock(tx: &mut Tx, id: OrderId) -> Result<Option<Order>, Error> {
    let text = locking(tx.dialect(), &format!("{COLUMNS}{BY_ID}"), FOR_UPDATE);
    let row: Option<OrderRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    Ok(row.map(read))
}

/// Reads the order for a reservation whose row the transaction holds.
pub(crate) async fn of_reservation(tx: &mut Tx, id: ReservationId) -> Result<Option<Order>, Error> {
    let text = format!("{COLUMNS}{BY_RESERVATION}");
    let row: Option<OrderRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    Ok(row.map(read))
}

/// Reads the orders of a user, the newest first.
pub(crate) async fn of_user(connection: &mut Conn, user: UserId, limit: u32) -> Result<Vec<Order>, Error> {
    let text = format!("{COLUMNS}{BY_USER}");
    let rows: Vec<OrderRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text))
            .bind(bytes(user.as_uuid()))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads orders in a state, the oldest change first.
pub(crate) async fn in_state(
    connection: &mut Conn,
    state: OrderState,
    limit: u32,
) -> Result<Vec<Order>, Error> {
    let text = format!("{COLUMNS}{BY_STATE}");
    let rows: Vec<OrderRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text)).bind(number(state)).bind(i64::from(limit)).fetch_all(raw).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads of which order and which kind a message of this id was, if one was received.
pub(crate) async fn message(tx: &mut Tx, id: &str) -> Result<Option<(OrderId, String)>, Error> {
    let row: Option<(Vec<u8>, String)> = db::on!(tx, connection => {
        sqlx::query_as(MESSAGE).bind(id).fetch_optional(connection).await?
    });
    Ok(row.map(|(order, kind)| (OrderId::from_uuid(uuid(&order)), kind)))
}

/// Records a message when the transaction is committed.
pub(crate) fn add_message(tx: &mut Tx, notice: &Notice, state: OrderState) {
    let row = [
        notice.id.as_str().into(),
        notice.order.as_uuid().into(),
        notice.kind.word().into(),
        state.word().into(),
        db::Value::Now,
    ];
    tx.insert_at_commit(ADD_MESSAGE, [row]);
}

/// Removes a user from their orders. The orders stay, since the stock's counts are made of them.
pub(crate) async fn forget_user(tx: &mut Tx, user: UserId) -> Result<(), Error> {
    let nobody = base::id::Uuid::nil();
    db::on!(tx, connection => {
        sqlx::query(FORGET_USER)
            .bind(bytes(&nobody))
            .bind(bytes(&nobody))
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
        created_at: Timestamp::from_millis(row.created_at),
        version: row.version,
    }
}

const fn number(state: OrderState) -> i32 {
    match state {
        OrderState::Pending => 0,
        OrderState::Paid => 1,
        OrderState::RefundDue => 2,
        OrderState::Failed => 3,
        OrderState::Refunded => 4,
    }
}

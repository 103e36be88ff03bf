//! Queries of orders for the console and for traces.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Error};
use sqlx::AssertSqlSafe;

use super::{COLUMNS, OrderRow, number, read};
use crate::orders::model::{Order, OrderState};
use crate::stock::store::bytes;
use crate::{DropId, OrderId, ReservationId};

/// Which orders to read, the newest first. Each has an index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WhichOrders<'a> {
    Order(OrderId),
    Reservation(ReservationId),
    /// By the provider's id of the payment.
    Payment(&'a str),
    /// Of one user, created before `before`.
    User {
        user: UserId,
        before: Option<OrderId>,
    },
    /// In one state of one drop, created before `before`.
    Drop {
        drop: DropId,
        state: OrderState,
        before: Option<OrderId>,
    },
}

/// An order with the time of its last change.
#[derive(Clone, Debug)]
pub(crate) struct DatedOrder {
    pub(crate) order: Order,
    pub(crate) changed_at: Timestamp,
}

/// Reads up to `limit` orders, the newest first.
pub(crate) async fn dated(
    connection: &mut Conn,
    which: WhichOrders<'_>,
    limit: u32,
) -> Result<Vec<DatedOrder>, Error> {
    let filter = match which {
        WhichOrders::Order(_) => "order_id = ?",
        WhichOrders::Reservation(_) => "reservation_id = ?",
        WhichOrders::Payment(_) => "payment = ?",
        WhichOrders::User { .. } => "user_id = ? AND order_id < ?",
        WhichOrders::Drop { .. } => "drop_id = ? AND state = ? AND order_id < ?",
    };
    let text = AssertSqlSafe(format!("{COLUMNS}WHERE {filter} ORDER BY order_id DESC LIMIT ?"));
    let rows: Vec<OrderRow> = db::on!(connection, raw => {
        let query = sqlx::query_as(text);
        let query = match &which {
            WhichOrders::Order(id) => query.bind(bytes(id.as_uuid())),
            WhichOrders::Reservation(id) => query.bind(bytes(id.as_uuid())),
            WhichOrders::Payment(payment) => query.bind(*payment),
            WhichOrders::User { user, before } => {
                let before = before.map_or(Uuid::max(), |id| *id.as_uuid());
                query.bind(bytes(user.as_uuid())).bind(before.as_bytes().to_vec())
            }
            WhichOrders::Drop { drop, state, before } => {
                let before = before.map_or(Uuid::max(), |id| *id.as_uuid());
                query.bind(bytes(drop.as_uuid())).bind(number(*state)).bind(before.as_bytes().to_vec())
            }
        };
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    let dated = |row: OrderRow| (Timestamp::from_millis(row.changed_at), row);
    let dated = rows.into_iter().map(dated);
    Ok(dated.map(|(changed_at, row)| DatedOrder { order: read(row), changed_at }).collect())
}

/// Counts the orders of a drop in a state, up to `cap`.
pub(crate) async fn count_in_state(
    connection: &mut Conn,
    drop: DropId,
    state: OrderState,
    cap: u64,
) -> Result<u64, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM drop_orders WHERE drop_id = ? AND state = ? LIMIT {cap}) counted"
    ));
    let counted: i64 = db::on!(connection, raw => {
        sqlx::query_scalar(text).bind(bytes(drop.as_uuid())).bind(number(state)).fetch_one(raw).await?
    });
    Ok(counted.unsigned_abs())
}

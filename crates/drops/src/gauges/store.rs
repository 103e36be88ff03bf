//! Queries for the gauges.

use base::id::Uuid;
use db::{Db, Error};
use sqlx::AssertSqlSafe;

use crate::DropId;
use crate::model::{DropState, EntryState};
use crate::orders::OrderState;
use crate::store::{drop_state_number, entry_state_number};

db::row! {
    struct CountsRow {
        drop_id: Vec<u8>,
        name: String,
        available: i64,
        reserved: i64,
        sold: i64,
        inside: i64,
    }
}

/// The counts of one drop.
pub(super) struct Counts {
    pub(super) id: DropId,
    pub(super) name: String,
    pub(super) available: i64,
    pub(super) reserved: i64,
    pub(super) sold: i64,
    pub(super) inside: i64,
}

/// Reads the counts of drops that are scheduled, open or paused, the newest first.
pub(super) async fn counts(db: &Db, limit: u32) -> Result<Vec<Counts>, Error> {
    let text = format!(
        "SELECT d.drop_id, d.name, s.available, s.reserved, s.sold, \
         (SELECT COUNT(*) FROM drop_entries e WHERE e.drop_id = d.drop_id AND e.state = {}) AS inside \
         FROM drops d JOIN drop_stock s ON s.drop_id = d.drop_id WHERE d.state IN ({}, {}, {}) \
         ORDER BY d.drop_id DESC LIMIT {limit}",
        entry_state_number(EntryState::Entered),
        drop_state_number(DropState::Scheduled),
        drop_state_number(DropState::Open),
        drop_state_number(DropState::Paused),
    );
    let mut connection = db.connection().await?;
    let rows: Vec<CountsRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text)).fetch_all(raw).await?
    });
    let read = |row: CountsRow| Counts {
        id: DropId::from_uuid(Uuid::from_slice(&row.drop_id).unwrap_or_default()),
        name: row.name,
        available: row.available,
        reserved: row.reserved,
        sold: row.sold,
        inside: row.inside,
    };
    Ok(rows.into_iter().map(read).collect())
}

/// Counts the payments that must be refunded.
pub(super) async fn refunds_due(db: &Db) -> Result<i64, Error> {
    const DUE: &str = "SELECT (SELECT COUNT(*) FROM drop_orders WHERE state = ?) \
        + (SELECT COUNT(*) FROM drop_surplus_payments WHERE state = 0)";
    let mut connection = db.connection().await?;
    Ok(db::on!(connection, raw => {
        sqlx::query_scalar(DUE)
            .bind(crate::orders::store::number(OrderState::RefundDue))
            .fetch_one(raw)
            .await?
    }))
}

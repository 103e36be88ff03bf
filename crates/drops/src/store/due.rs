//! Finds the drops that a loop has work for.

use base::id::Uuid;
use db::{Db, Error};
use sqlx::AssertSqlSafe;

use super::rows::{drop_state_number, entry_state_number};
use crate::DropId;
use crate::model::{DropState, EntryState};

/// Returns the scheduled drops whose opening time has come.
pub(crate) async fn due_to_open(db: &Db) -> Result<Vec<DropId>, Error> {
    let text = format!(
        "SELECT drop_id FROM drops WHERE state = {} AND opens_at <= {} ORDER BY opens_at",
        drop_state_number(DropState::Scheduled),
        db.dialect().now()
    );
    ids(db, text).await
}

/// Returns the open drops whose closing time has come.
pub(crate) async fn due_to_close(db: &Db) -> Result<Vec<DropId>, Error> {
    let text = format!(
        "SELECT drop_id FROM drops WHERE state IN ({}, {}) AND closes_at <= {} ORDER BY closes_at",
        drop_state_number(DropState::Open),
        drop_state_number(DropState::Paused),
        db.dialect().now()
    );
    ids(db, text).await
}

/// Returns the drops that may need an admission cycle, each with the milliseconds since its last one: open and paused drops, and ended
/// ones with players inside.
pub(crate) async fn due_cycles(db: &Db) -> Result<Vec<(DropId, i64)>, Error> {
    let text = format!(
        "SELECT d.drop_id, {} - h.cycled_at FROM drops d JOIN drop_heads h ON h.drop_id = d.drop_id \
         WHERE d.state IN ({}, {}) OR d.state IN ({}, {}) AND EXISTS \
         (SELECT 1 FROM drop_entries e WHERE e.drop_id = d.drop_id AND e.state = {}) ORDER BY d.drop_id",
        db.dialect().now(),
        drop_state_number(DropState::Open),
        drop_state_number(DropState::Paused),
        drop_state_number(DropState::Closed),
        drop_state_number(DropState::Cancelled),
        entry_state_number(EntryState::Entered),
    );
    ids_with_number(db, text).await
}

/// Returns the drops that have a line: scheduled, open and paused ones.
pub(crate) async fn drops_with_lines(db: &Db) -> Result<Vec<DropId>, Error> {
    let text = format!(
        "SELECT drop_id FROM drops WHERE state IN ({}, {}, {}) ORDER BY drop_id",
        drop_state_number(DropState::Scheduled),
        drop_state_number(DropState::Open),
        drop_state_number(DropState::Paused),
    );
    ids(db, text).await
}

/// Returns the ended drops whose lines may still be in Redis, each with whether it ended more than a minute ago. By then every join that
/// committed before the end has been copied to the line, or that copy has failed.
pub(crate) async fn ended_with_lines(db: &Db) -> Result<Vec<(DropId, bool)>, Error> {
    const MINUTE: i64 = 60_000;
    let text = format!(
        "SELECT d.drop_id, CASE WHEN d.closed_at < {} - {MINUTE} THEN 1 ELSE 0 END FROM drops d \
         JOIN drop_heads h ON h.drop_id = d.drop_id \
         WHERE d.state IN ({}, {}) AND h.line_removed_at IS NULL ORDER BY d.drop_id",
        db.dialect().now(),
        drop_state_number(DropState::Closed),
        drop_state_number(DropState::Cancelled),
    );
    Ok(ids_with_number(db, text).await?.into_iter().map(|(drop, is_old)| (drop, is_old != 0)).collect())
}

/// Returns the ended drops in which players still wait.
pub(crate) async fn ended_with_players_waiting(db: &Db) -> Result<Vec<DropId>, Error> {
    let text = format!(
        "SELECT d.drop_id FROM drops d WHERE d.state IN ({}, {}) AND EXISTS \
         (SELECT 1 FROM drop_entries e WHERE e.drop_id = d.drop_id AND e.state = {}) ORDER BY d.drop_id",
        drop_state_number(DropState::Closed),
        drop_state_number(DropState::Cancelled),
        entry_state_number(EntryState::Waiting),
    );
    ids(db, text).await
}

/// Returns the open drops whose units are all sold: none is available and none is reserved.
pub(crate) async fn sold_out(db: &Db) -> Result<Vec<DropId>, Error> {
    let text = format!(
        "SELECT d.drop_id FROM drops d JOIN drop_stock s ON s.drop_id = d.drop_id \
         WHERE d.state = {} AND s.available = 0 AND s.reserved = 0 AND s.sold > 0 ORDER BY d.drop_id",
        drop_state_number(DropState::Open),
    );
    ids(db, text).await
}

/// Runs a query that selects drop ids, each with a number.
async fn ids_with_number(db: &Db, text: String) -> Result<Vec<(DropId, i64)>, Error> {
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<(Vec<u8>, i64)> = db::on!(connection, raw => {
            sqlx::query_as(AssertSqlSafe(text)).fetch_all(raw).await?
        });
        Ok::<_, Error>(rows)
    };
    let rows = db.bounded(reading).await?;
    let read = |(id, number): (Vec<u8>, i64)| Some((DropId::from_uuid(Uuid::from_slice(&id).ok()?), number));
    Ok(rows.into_iter().filter_map(read).collect())
}

/// Runs a query that selects drop ids.
async fn ids(db: &Db, text: String) -> Result<Vec<DropId>, Error> {
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<Vec<u8>> = db::on!(connection, raw => {
            sqlx::query_scalar(AssertSqlSafe(text)).fetch_all(raw).await?
        });
        Ok::<_, Error>(rows)
    };
    let rows = db.bounded(reading).await?;
    Ok(rows.iter().filter_map(|id| Uuid::from_slice(id).ok()).map(DropId::from_uuid).collect())
}

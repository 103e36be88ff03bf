//! The rows of drops and of their heads.

use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::bytes;
use super::rows::{DropRow, drop_state_number, end_reason_number, read_stats};
use crate::DropId;
use crate::model::{CycleStats, DropRecord, DropState, Seed};

/// The columns of a drop, prefixed with the table alias `d`.
const COLUMNS: &str = "d.drop_id, d.name, d.state, d.resource, d.opens_at, d.closes_at, d.opened_at, d.closed_at, d.end_reason, \
    d.created_at, d.version, d.terms, d.seed, d.everyone_waits";

db::row! {
    struct HeadRow {
        joined: i64,
        cycled_at: i64,
        cycles: i64,
        controller: String,
    }
}

/// The head of a drop: the row that serializes its joins and cycles.
#[derive(Clone, Debug)]
pub(crate) struct DropHead {
    /// The number of the last join.
    pub(crate) joined: i64,
    /// When the last cycle was due.
    pub(crate) cycled_at: Timestamp,
    pub(crate) cycles: i64,
    pub(crate) stats: CycleStats,
}

/// A drop whose head row is locked by the transaction.
#[derive(Clone, Debug)]
pub(crate) struct LockedDrop {
    pub(crate) drop: DropRecord,
    pub(crate) head: DropHead,
}

/// A drop to be inserted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewDropRow<'a> {
    pub(crate) id: DropId,
    pub(crate) name: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) terms: &'a str,
    pub(crate) seed: &'a Seed,
    /// The initial stats in its head.
    pub(crate) stats: &'a str,
}

/// Inserts a drop with its head at the commit. The commit fails with [`Error::Duplicate`] if the name is taken.
pub(crate) fn insert(tx: &mut Tx, new: NewDropRow<'_>) {
    const DROP: &str = "INSERT INTO drops (drop_id, name, state, resource, created_at, version, terms, seed, everyone_waits)";
    const HEAD: &str = "INSERT INTO drop_heads (drop_id, joined, cycled_at, cycles, controller)";
    let id = || Value::from(new.id.as_uuid());
    let draft = drop_state_number(DropState::Draft).into();
    let seed = Value::Bytes(&new.seed.as_bytes()[..]);
    let (zero, one) = (Value::Integer(0), Value::Integer(1));
    let drop =
        [id(), new.name.into(), draft, new.resource.into(), Value::Now, one, new.terms.into(), seed, zero];
    tx.insert_at_commit(DROP, [drop]);
    tx.insert_at_commit(HEAD, [[id(), zero, zero, zero, new.stats.into()]]);
}

/// Locks the head of a drop until the transaction ends, and reads both. Returns none if there is no such drop.
///
/// Joins, admission cycles and changes of the drop begin with this lock, so they exclude each other.
pub(crate) async fn lock(db: &Db, tx: &mut Tx, id: DropId) -> Result<Option<LockedDrop>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT joined, cycled_at, cycles, controller FROM drop_heads WHERE drop_id = ? {}",
        tx.dialect().pick("", "FOR UPDATE")
    ));
    let head: Option<HeadRow> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    let Some(head) = head else { return Ok(None) };
    // A second statement, so that it sees what the previous holder of the head has written.
    let text = AssertSqlSafe(format!("SELECT {COLUMNS} FROM drops d WHERE d.drop_id = ?"));
    let drop: Option<DropRow> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    let Some(drop) = drop else { return Ok(None) };
    let head = DropHead {
        joined: head.joined,
        cycled_at: Timestamp::from_millis(head.cycled_at),
        cycles: head.cycles,
        stats: read_stats(db, id, &head.controller)?,
    };
    Ok(Some(LockedDrop { drop: drop.read(db)?, head }))
}

/// Writes the current state of a drop. The caller holds its head.
pub(crate) async fn save(tx: &mut Tx, drop: &DropRecord, terms: &str) -> Result<(), Error> {
    const SAVE: &str = "UPDATE drops SET state = ?, opens_at = ?, closes_at = ?, opened_at = ?, closed_at = ?, end_reason = ?, version = ?, \
        terms = ?, everyone_waits = ? WHERE drop_id = ?";
    let millis = |time: Option<Timestamp>| time.map(Timestamp::as_millis);
    db::on!(tx, connection => {
        sqlx::query(SAVE)
            .bind(drop_state_number(drop.state))
            .bind(millis(drop.opens_at))
            .bind(millis(drop.closes_at))
            .bind(millis(drop.opened_at))
            .bind(millis(drop.closed_at))
            .bind(drop.end_reason.map(end_reason_number))
            .bind(drop.version)
            .bind(terms)
            .bind(i32::from(drop.everyone_waits))
            .bind(bytes(drop.id.as_uuid()))
            .execute(connection)
            .await?;
    });
    Ok(())
}

/// Writes the head, which the caller holds.
pub(crate) async fn save_head(tx: &mut Tx, id: DropId, head: &DropHead) -> Result<(), crate::Error> {
    const SAVE: &str =
        "UPDATE drop_heads SET joined = ?, cycled_at = ?, cycles = ?, controller = ? WHERE drop_id = ?";
    let stats = head.stats.to_stored()?;
    let saving = async {
        db::on!(tx, connection => {
            sqlx::query(SAVE)
                .bind(head.joined)
                .bind(head.cycled_at.as_millis())
                .bind(head.cycles)
                .bind(&stats)
                .bind(bytes(id.as_uuid()))
                .execute(connection)
                .await?;
        });
        Ok::<_, Error>(())
    };
    Ok(saving.await?)
}

/// Records that the line of an ended drop is no longer in Redis.
pub(crate) async fn mark_line_removed(db: &Db, id: DropId) -> Result<(), Error> {
    let text = AssertSqlSafe(format!(
        "UPDATE drop_heads SET line_removed_at = {} WHERE drop_id = ?",
        db.dialect().now()
    ));
    db.bounded(async {
        let mut tx = db.begin().await?;
        db::on!(tx, connection => {
            sqlx::query(text).bind(bytes(id.as_uuid())).execute(connection).await?;
        });
        tx.commit().await
    })
    .await
}

/// Returns how many units of a drop are available and how many are reserved.
pub(crate) async fn unsold(tx: &mut Tx, id: DropId) -> Result<(i64, i64), Error> {
    const UNSOLD: &str = "SELECT available, reserved FROM drop_stock WHERE drop_id = ?";
    let unsold: Option<(i64, i64)> = db::on!(tx, connection => {
        sqlx::query_as(UNSOLD).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    Ok(unsold.unwrap_or_default())
}

pub(crate) async fn get(db: &Db, connection: &mut Conn, id: DropId) -> Result<Option<DropRecord>, Error> {
    let text = AssertSqlSafe(format!("SELECT {COLUMNS} FROM drops d WHERE d.drop_id = ?"));
    let row: Option<DropRow> = db::on!(connection, raw => {
        sqlx::query_as(text).bind(bytes(id.as_uuid())).fetch_optional(raw).await?
    });
    row.map(|row| row.read(db)).transpose()
}

/// Reads the stats of a drop's admission cycles.
pub(crate) async fn cycle_stats(db: &Db, connection: &mut Conn, id: DropId) -> Result<CycleStats, Error> {
    const STATS: &str = "SELECT controller FROM drop_heads WHERE drop_id = ?";
    let text: Option<String> = db::on!(connection, raw => {
        sqlx::query_scalar(STATS).bind(bytes(id.as_uuid())).fetch_optional(raw).await?
    });
    text.map_or_else(|| Ok(CycleStats::default()), |text| read_stats(db, id, &text))
}

/// Reads the drops after the id `after`, in the order of their ids. With a state, only drops in that state.
pub(crate) async fn list(
    db: &Db,
    connection: &mut Conn,
    state: Option<DropState>,
    after: Option<DropId>,
    limit: u32,
) -> Result<Vec<DropRecord>, Error> {
    let of_state = if state.is_some() { "AND d.state = ?" } else { "" };
    let text = AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM drops d WHERE d.drop_id > ? {of_state} ORDER BY d.drop_id LIMIT ?"
    ));
    let after = after.map_or(Uuid::nil(), |id| *id.as_uuid());
    let rows: Vec<DropRow> = db::on!(connection, raw => {
        let mut query = sqlx::query_as(text).bind(bytes(&after));
        if let Some(state) = state {
            query = query.bind(drop_state_number(state));
        }
        query.bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Reads the drops that were created before `before`, the newest first.
pub(crate) async fn newest(
    db: &Db,
    connection: &mut Conn,
    before: Option<DropId>,
    limit: u32,
) -> Result<Vec<DropRecord>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM drops d WHERE d.drop_id < ? ORDER BY d.drop_id DESC LIMIT ?"
    ));
    let before = before.map_or(Uuid::max(), |id| *id.as_uuid());
    let rows: Vec<DropRow> = db::on!(connection, raw => {
        sqlx::query_as(text).bind(bytes(&before)).bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Reads the drops that are scheduled, open or paused, the newest first.
pub(crate) async fn running(db: &Db, connection: &mut Conn, limit: u32) -> Result<Vec<DropRecord>, Error> {
    let states = [DropState::Scheduled, DropState::Open, DropState::Paused]
        .map(|state| drop_state_number(state).to_string());
    let text = AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM drops d WHERE d.state IN ({}) ORDER BY d.drop_id DESC LIMIT ?",
        states.join(", ")
    ));
    let rows: Vec<DropRow> = db::on!(connection, raw => {
        sqlx::query_as(text).bind(i64::from(limit)).fetch_all(raw).await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

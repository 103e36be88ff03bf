//! The drops and their heads.

use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::bytes;
use super::rows::{DropRow, drop_state_number, end_reason_number, read_measured};
use crate::DropId;
use crate::model::{DropRecord, DropState, Measured, Seed};

/// The columns of a drop, behind its table's name `d`.
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

/// What joins and cycles of a drop take one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The number of the last join.
    pub(crate) joined: i64,
    /// When the last cycle was due.
    pub(crate) cycled_at: Timestamp,
    pub(crate) cycles: i64,
    pub(crate) measured: Measured,
}

/// A drop whose head the transaction holds.
#[derive(Clone, Debug)]
pub(crate) struct Locked {
    pub(crate) drop: DropRecord,
    pub(crate) head: Head,
}

/// A drop to be inserted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewDrop<'a> {
    pub(crate) id: DropId,
    pub(crate) name: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) terms: &'a str,
    pub(crate) seed: &'a Seed,
    /// What its head begins with.
    pub(crate) measured: &'a str,
}

/// Inserts a drop with its head when the transaction is committed. That fails with [`Error::Duplicate`] if the name is taken.
pub(crate) fn insert(tx: &mut Tx, new: NewDrop<'_>) {
    const DROP: &str = "INSERT INTO drops (drop_id, name, state, resource, created_at, version, terms, seed, everyone_waits)";
    const HEAD: &str = "INSERT INTO drop_heads (drop_id, joined, cycled_at, cycles, controller)";
    let id = || Value::from(new.id.as_uuid());
    let draft = drop_state_number(DropState::Draft).into();
    let seed = Value::Bytes(&new.seed.as_bytes()[..]);
    let (zero, one) = (Value::Integer(0), Value::Integer(1));
    let drop =
        [id(), new.name.into(), draft, new.resource.into(), Value::Now, one, new.terms.into(), seed, zero];
    tx.insert_at_commit(DROP, [drop]);
    tx.insert_at_commit(HEAD, [[id(), zero, zero, zero, new.measured.into()]]);
}

/// Locks the head of a drop until the transaction ends, and reads both. None if there is no such drop.
///
/// Joins, admission cycles and changes of the drop begin with this, so they exclude each other.
pub(crate) async fn lock(db: &Db, tx: &mut Tx, id: DropId) -> Result<Option<Locked>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT joined, cycled_at, cycles, controller FROM drop_heads WHERE drop_id = ? {}",
        tx.dialect().pick("", "FOR UPDATE")
    ));
    let head: Option<HeadRow> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    let Some(head) = head else { return Ok(None) };
    // A statement of its own, which sees what the last holder of the head has written.
    let text = AssertSqlSafe(format!("SELECT {COLUMNS} FROM drops d WHERE d.drop_id = ?"));
    let drop: Option<DropRow> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    let Some(drop) = drop else { return Ok(None) };
    let head = Head {
        joined: head.joined,
        cycled_at: Timestamp::from_millis(head.cycled_at),
        cycles: head.cycles,
        measured: read_measured(db, id, &head.controller)?,
    };
    Ok(Some(Locked { drop: drop.read(db)?, head }))
}

/// Writes a drop as it is now. The caller holds its head.
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
pub(crate) async fn save_head(tx: &mut Tx, id: DropId, head: &Head) -> Result<(), crate::Error> {
    const SAVE: &str =
        "UPDATE drop_heads SET joined = ?, cycled_at = ?, cycles = ?, controller = ? WHERE drop_id = ?";
    let measured = head.measured.to_stored()?;
    let saving = async {
        db::on!(tx, connection => {
            sqlx::query(SAVE)
                .bind(head.joined)
                .bind(head.cycled_at.as_millis())
                .bind(head.cycles)
                .bind(&measured)
                .bind(bytes(id.as_uuid()))
                .execute(connection)
                .await?;
        });
        Ok::<_, Error>(())
    };
    Ok(saving.await?)
}

/// Notes that the line of a drop that is over is not in Redis any more.
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

/// Returns how many units of a drop are available, and how many are reserved.
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

/// Returns what cycles of a drop have measured.
pub(crate) async fn measured(db: &Db, connection: &mut Conn, id: DropId) -> Result<Measured, Error> {
    const MEASURED: &str = "SELECT controller FROM drop_heads WHERE drop_id = ?";
    let text: Option<String> = db::on!(connection, raw => {
        sqlx::query_scalar(MEASURED).bind(bytes(id.as_uuid())).fetch_optional(raw).await?
    });
    text.map_or_else(|| Ok(Measured::default()), |text| read_measured(db, id, &text))
}

/// Returns drops in the order of their ids, from behind one of them: all, or those of a state.
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

//! The rows of line entries.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Dialect, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::bytes;
use super::rows::{EntryRow, PlayerEntryRow, entry_state_number, left_reason_number};
use crate::DropId;
use crate::model::{Cohort, DropState, EntryState, LeftReason, LineEntry, LineMember};

const COLUMNS: &str = "user_id, account_id, state, left_reason, number, place, joined_at, admission_id, entered_at, expires_at, arrived_at";
const WAITING: i32 = entry_state_number(EntryState::Waiting);
const ENTERED: i32 = entry_state_number(EntryState::Entered);
const LEFT: i32 = entry_state_number(EntryState::Left);
const EXPIRED: i32 = entry_state_number(EntryState::Expired);
/// How many rows one packet to the server holds.
const CHUNK: usize = 500;

const fn for_update(dialect: Dialect) -> &'static str {
    dialect.pick("", "FOR UPDATE")
}

/// An entry with its drop.
#[derive(Clone, Debug)]
pub(crate) struct PlayerEntry {
    pub(crate) drop: DropId,
    pub(crate) drop_name: String,
    pub(crate) drop_state: DropState,
    pub(crate) entry: LineEntry,
    /// The store's time.
    pub(crate) now: Timestamp,
}

const PLAYER_ENTRIES: &str = "SELECT e.drop_id, d.name AS drop_name, d.state AS drop_state, {now} AS now, e.user_id, e.account_id, \
    e.state, e.left_reason, e.number, e.place, e.joined_at, e.admission_id, e.entered_at, e.expires_at, e.arrived_at \
    FROM drop_entries e JOIN drops d ON d.drop_id = e.drop_id WHERE ";

/// Reads the entry of a player in a drop.
pub(crate) async fn find_entry(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    user: UserId,
) -> Result<Option<PlayerEntry>, Error> {
    let text = PLAYER_ENTRIES.replace("{now}", db.dialect().now()) + "e.drop_id = ? AND e.user_id = ?";
    let row: Option<PlayerEntryRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text))
            .bind(bytes(drop.as_uuid()))
            .bind(bytes(user.as_uuid()))
            .fetch_optional(raw)
            .await?
    });
    row.map(|row| row.read(db)).transpose()
}

/// Reads the entries with which a player waits or is inside, the latest join first.
pub(crate) async fn entries_of_player(
    db: &Db,
    connection: &mut Conn,
    user: UserId,
    limit: u32,
) -> Result<Vec<PlayerEntry>, Error> {
    let text = PLAYER_ENTRIES.replace("{now}", db.dialect().now())
        + "e.user_id = ? AND e.state IN (?, ?) ORDER BY e.joined_at DESC, e.drop_id DESC LIMIT ?";
    let rows: Vec<PlayerEntryRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text))
            .bind(bytes(user.as_uuid()))
            .bind(WAITING)
            .bind(ENTERED)
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Reads all entries of a player, the latest join first, beginning after the time and drop of `before`.
pub(crate) async fn all_entries_of_player(
    db: &Db,
    connection: &mut Conn,
    user: UserId,
    before: Option<(Timestamp, DropId)>,
    limit: u32,
) -> Result<Vec<PlayerEntry>, Error> {
    let text = PLAYER_ENTRIES.replace("{now}", db.dialect().now())
        + "e.user_id = ? AND (e.joined_at < ? OR (e.joined_at = ? AND e.drop_id < ?)) \
           ORDER BY e.joined_at DESC, e.drop_id DESC LIMIT ?";
    let (at, drop) = before.map_or((i64::MAX, Uuid::max()), |(at, drop)| (at.as_millis(), *drop.as_uuid()));
    let rows: Vec<PlayerEntryRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text))
            .bind(bytes(user.as_uuid()))
            .bind(at)
            .bind(at)
            .bind(bytes(&drop))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Reads the entries of a drop in a state, in the order of the line, behind the place and user of `after`.
pub(crate) async fn entries_after(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    state: EntryState,
    (place, user): (i64, Uuid),
    limit: u32,
) -> Result<Vec<LineEntry>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM drop_entries WHERE drop_id = ? AND state = ? AND place >= ? AND (place > ? OR user_id > ?) \
         ORDER BY place, user_id LIMIT ?"
    ));
    let rows: Vec<EntryRow> = db::on!(connection, raw => {
        sqlx::query_as(text)
            .bind(bytes(drop.as_uuid()))
            .bind(entry_state_number(state))
            .bind(place)
            .bind(place)
            .bind(bytes(&user))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Locks and reads the entries of these users.
pub(crate) async fn lock_entries(
    db: &Db,
    tx: &mut Tx,
    drop: DropId,
    users: &[UserId],
) -> Result<Vec<LineEntry>, Error> {
    let text = format!(
        "SELECT {COLUMNS} FROM drop_entries WHERE drop_id = ? AND user_id IN ({{list}}) {}",
        for_update(tx.dialect())
    );
    let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
    let (text, padding) = db::list_text(&text, ids.len());
    let rows: Vec<EntryRow> = db::on!(tx, connection => {
        let query = sqlx::query_as(text).bind(bytes(drop.as_uuid()));
        db::bind_list!(query, ids, padding).fetch_all(connection).await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Writes entries, at the latest at the commit. The caller has locked them or holds the head.
pub(crate) async fn save_entries(tx: &mut Tx, drop: DropId, entries: &[LineEntry]) -> Result<(), Error> {
    const REPLACE: &str = "REPLACE INTO drop_entries (drop_id, user_id, account_id, state, left_reason, number, place, joined_at, \
        admission_id, entered_at, expires_at, arrived_at, changed_at)";
    for entries in entries.chunks(CHUNK) {
        // Sends the previous chunk: servers limit the size of a packet.
        tx.flush().await?;
        let rows = entries.iter().map(|entry| {
            [
                drop.as_uuid().into(),
                entry.user.as_uuid().into(),
                entry.account.as_uuid().into(),
                entry_state_number(entry.state).into(),
                entry.left_reason.map_or(Value::Null, |reason| left_reason_number(reason).into()),
                entry.number.into(),
                entry.place.stored().into(),
                entry.joined_at.into(),
                entry.admission.as_uuid().into(),
                entry.entered_at.into(),
                entry.expires_at.into(),
                entry.arrived_at.into(),
                Value::Now,
            ]
        });
        tx.insert_at_commit(REPLACE, rows);
    }
    Ok(())
}

/// Counts the players inside.
pub(crate) async fn count_inside(tx: &mut Tx, drop: DropId) -> Result<i64, Error> {
    const INSIDE: &str = "SELECT COUNT(*) FROM drop_entries WHERE drop_id = ? AND state = ?";
    Ok(db::on!(tx, connection => {
        sqlx::query_scalar(INSIDE).bind(bytes(drop.as_uuid())).bind(ENTERED).fetch_one(connection).await?
    }))
}

/// Counts the admissions of a time range, and how many of them were used.
pub(crate) async fn count_cohort(
    tx: &mut Tx,
    drop: DropId,
    from: Timestamp,
    until: Timestamp,
) -> Result<Cohort, Error> {
    const COHORT: &str = "SELECT COUNT(*), COUNT(arrived_at) FROM drop_entries WHERE drop_id = ? AND entered_at > ? AND entered_at <= ?";
    let (admitted, arrived): (i64, i64) = db::on!(tx, connection => {
        sqlx::query_as(COHORT)
            .bind(bytes(drop.as_uuid()))
            .bind(from.as_millis())
            .bind(until.as_millis())
            .fetch_one(connection)
            .await?
    });
    Ok(Cohort { admitted, arrived })
}

/// Locks and reads the first waiting players, in order.
pub(crate) async fn first_waiting(
    db: &Db,
    tx: &mut Tx,
    drop: DropId,
    limit: u32,
) -> Result<Vec<LineEntry>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM drop_entries WHERE drop_id = ? AND state = ? ORDER BY place, user_id LIMIT ? {}",
        for_update(tx.dialect())
    ));
    let rows: Vec<EntryRow> = db::on!(tx, connection => {
        sqlx::query_as(text)
            .bind(bytes(drop.as_uuid()))
            .bind(WAITING)
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Admits all waiting players up to `last`. Returns how many. The caller holds the head, so no player can have joined before `last` since
/// the entries were read.
pub(crate) async fn admit(
    tx: &mut Tx,
    drop: DropId,
    last: LineMember,
    now: Timestamp,
    expires_at: Timestamp,
) -> Result<u64, Error> {
    const ADMIT: &str = "UPDATE drop_entries SET state = ?, entered_at = ?, expires_at = ?, arrived_at = NULL, changed_at = ? \
        WHERE drop_id = ? AND state = ? AND place <= ? AND (place < ? OR user_id <= ?)";
    Ok(db::on!(tx, connection => {
        sqlx::query(ADMIT)
            .bind(ENTERED)
            .bind(now.as_millis())
            .bind(expires_at.as_millis())
            .bind(now.as_millis())
            .bind(bytes(drop.as_uuid()))
            .bind(WAITING)
            .bind(last.place.stored())
            .bind(last.place.stored())
            .bind(bytes(last.user.as_uuid()))
            .execute(connection)
            .await?
            .rows_affected()
    }))
}

/// Ends the wait of all players up to `last`, because the drop has ended. Returns how many. The caller holds the head.
pub(crate) async fn end_waiting(
    tx: &mut Tx,
    drop: DropId,
    last: LineMember,
    now: Timestamp,
) -> Result<u64, Error> {
    const END: &str = "UPDATE drop_entries SET state = ?, left_reason = ?, changed_at = ? \
        WHERE drop_id = ? AND state = ? AND place <= ? AND (place < ? OR user_id <= ?)";
    Ok(db::on!(tx, connection => {
        sqlx::query(END)
            .bind(LEFT)
            .bind(left_reason_number(LeftReason::DropEnded))
            .bind(now.as_millis())
            .bind(bytes(drop.as_uuid()))
            .bind(WAITING)
            .bind(last.place.stored())
            .bind(last.place.stored())
            .bind(bytes(last.user.as_uuid()))
            .execute(connection)
            .await?
            .rows_affected()
    }))
}

/// Locks and reads expired admissions, the oldest first.
pub(crate) async fn first_expired(
    db: &Db,
    tx: &mut Tx,
    drop: DropId,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<LineEntry>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM drop_entries WHERE drop_id = ? AND state = ? AND expires_at <= ? ORDER BY expires_at, user_id LIMIT ? {}",
        for_update(tx.dialect())
    ));
    let rows: Vec<EntryRow> = db::on!(tx, connection => {
        sqlx::query_as(text)
            .bind(bytes(drop.as_uuid()))
            .bind(ENTERED)
            .bind(now.as_millis())
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Marks admissions as expired, up to the last entry that [`first_expired`] returned. Returns how many.
pub(crate) async fn expire(
    tx: &mut Tx,
    drop: DropId,
    last: &LineEntry,
    now: Timestamp,
) -> Result<u64, Error> {
    const EXPIRE: &str = "UPDATE drop_entries SET state = ?, changed_at = ? \
        WHERE drop_id = ? AND state = ? AND expires_at <= ? AND (expires_at < ? OR user_id <= ?)";
    let expires_at = last.expires_at.unwrap_or(now).as_millis();
    Ok(db::on!(tx, connection => {
        sqlx::query(EXPIRE)
            .bind(EXPIRED)
            .bind(now.as_millis())
            .bind(bytes(drop.as_uuid()))
            .bind(ENTERED)
            .bind(expires_at)
            .bind(expires_at)
            .bind(bytes(last.user.as_uuid()))
            .execute(connection)
            .await?
            .rows_affected()
    }))
}

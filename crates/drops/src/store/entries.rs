//! The entries of players.

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Dialect, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::rows::{EntryRow, SpotRow, bytes, entry_state_number};
use crate::DropId;
use crate::model::{Cohort, Entry, EntryState, Spot};

const COLUMNS: &str =
    "user_id, account_id, state, number, place, joined_at, admission_id, entered_at, expires_at, arrived_at";
const WAITING: i32 = entry_state_number(EntryState::Waiting);
const ENTERED: i32 = entry_state_number(EntryState::Entered);
const EXPIRED: i32 = entry_state_number(EntryState::Expired);
/// How many rows one message to the server has.
const AT_ONCE: usize = 500;

const fn for_update(dialect: Dialect) -> &'static str {
    dialect.pick("", "FOR UPDATE")
}

/// Reads one entry.
pub(crate) async fn entry(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    user: UserId,
) -> Result<Option<Entry>, Error> {
    let text = AssertSqlSafe(format!("SELECT {COLUMNS} FROM drop_entries WHERE drop_id = ? AND user_id = ?"));
    let row: Option<EntryRow> = db::on!(connection, raw => {
        sqlx::query_as(text)
            .bind(bytes(drop.as_uuid()))
            .bind(bytes(user.as_uuid()))
            .fetch_optional(raw)
            .await?
    });
    row.map(|row| row.read(db)).transpose()
}

/// The text of a list of parameters, filled up to a power of two so that there are few texts and each is prepared once.
fn places(length: usize) -> String {
    vec!["?"; length.max(1).next_power_of_two()].join(", ")
}

/// The users of a list, filled up likewise.
fn padded(users: &[UserId]) -> impl Iterator<Item = Vec<u8>> {
    let length = users.len().max(1).next_power_of_two();
    let ids = users.iter().map(|user| user.as_uuid().as_bytes().to_vec());
    ids.chain(std::iter::repeat(Uuid::nil().as_bytes().to_vec())).take(length)
}

/// Locks and reads the entries of these users.
pub(crate) async fn find(db: &Db, tx: &mut Tx, drop: DropId, users: &[UserId]) -> Result<Vec<Entry>, Error> {
    let text = AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM drop_entries WHERE drop_id = ? AND user_id IN ({}) {}",
        places(users.len()),
        for_update(tx.dialect())
    ));
    let rows: Vec<EntryRow> = db::on!(tx, connection => {
        let query = sqlx::query_as(text).bind(bytes(drop.as_uuid()));
        padded(users).fold(query, |query, user| query.bind(user)).fetch_all(connection).await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Writes entries as they are now, at the latest when the transaction is committed. The caller has locked them, or holds the head.
pub(crate) async fn replace(tx: &mut Tx, drop: DropId, entries: &[Entry]) -> Result<(), Error> {
    const REPLACE: &str = "REPLACE INTO drop_entries (drop_id, user_id, account_id, state, number, place, joined_at, admission_id, \
        entered_at, expires_at, arrived_at, changed_at)";
    for entries in entries.chunks(AT_ONCE) {
        // What the chunk before has: a server takes messages up to some size only.
        tx.write().await?;
        let rows = entries.iter().map(|entry| {
            [
                drop.as_uuid().into(),
                entry.user.as_uuid().into(),
                entry.account.as_uuid().into(),
                entry_state_number(entry.state).into(),
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

/// Returns how many players are inside.
pub(crate) async fn inside(tx: &mut Tx, drop: DropId) -> Result<i64, Error> {
    const INSIDE: &str = "SELECT COUNT(*) FROM drop_entries WHERE drop_id = ? AND state = ?";
    Ok(db::on!(tx, connection => {
        sqlx::query_scalar(INSIDE).bind(bytes(drop.as_uuid())).bind(ENTERED).fetch_one(connection).await?
    }))
}

/// Counts the admissions of some time, and those of them that were used.
pub(crate) async fn cohort(
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

/// Locks and reads the first who wait, in order.
pub(crate) async fn first_waiting(
    db: &Db,
    tx: &mut Tx,
    drop: DropId,
    limit: u32,
) -> Result<Vec<Entry>, Error> {
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

/// Admits all who wait up to a spot. The caller holds the head, so nobody can have joined before it since they were read. Returns how many.
pub(crate) async fn admit(
    tx: &mut Tx,
    drop: DropId,
    last: Spot,
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

/// Locks and reads the admissions whose time has ended, the oldest first.
pub(crate) async fn first_expired(
    db: &Db,
    tx: &mut Tx,
    drop: DropId,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Entry>, Error> {
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

/// Ends the admissions up to one of those that [`first_expired`] returned. Returns how many.
pub(crate) async fn expire(tx: &mut Tx, drop: DropId, last: &Entry, now: Timestamp) -> Result<u64, Error> {
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

/// Reads the next who wait behind a spot, in order.
pub(crate) async fn waiting_after(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    after: Option<Spot>,
    limit: u32,
) -> Result<Vec<Spot>, Error> {
    const AFTER: &str = "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND state = ? \
        AND place >= ? AND (place > ? OR user_id > ?) ORDER BY place, user_id LIMIT ?";
    // No place is negative: this one is before all.
    let (place, user) = after.map_or((-1, Uuid::nil()), |spot| (spot.place.stored(), *spot.user.as_uuid()));
    let rows: Vec<SpotRow> = db::on!(connection, raw => {
        sqlx::query_as(AFTER)
            .bind(bytes(drop.as_uuid()))
            .bind(WAITING)
            .bind(place)
            .bind(place)
            .bind(bytes(&user))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    rows.into_iter().map(|row| row.read(db)).collect()
}

/// Reads where those of these users stand who wait.
pub(crate) async fn waiting_among(
    db: &Db,
    connection: &mut Conn,
    drop: DropId,
    users: &[UserId],
) -> Result<Vec<Spot>, Error> {
    let mut spots = Vec::with_capacity(users.len());
    for users in users.chunks(AT_ONCE) {
        let text = AssertSqlSafe(format!(
            "SELECT user_id, place FROM drop_entries WHERE drop_id = ? AND state = ? AND user_id IN ({})",
            places(users.len())
        ));
        let rows: Vec<SpotRow> = db::on!(connection, raw => {
            let query = sqlx::query_as(text).bind(bytes(drop.as_uuid())).bind(WAITING);
            padded(users).fold(query, |query, user| query.bind(user)).fetch_all(raw).await?
        });
        for row in rows {
            spots.push(row.read(db)?);
        }
    }
    Ok(spots)
}

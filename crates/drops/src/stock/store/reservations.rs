//! The rows of reservations.

use account::{AccountId, UserId};
use base::Timestamp;
use db::{Conn, Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::{bytes, locking, uuid};
use crate::stock::model::{Reservation, ReservationState};
use crate::{DropId, ReservationId};

const COLUMNS: &str = "SELECT reservation_id, drop_id, user_id, account_id, state, quantity, confirmed, reserved_at, expires_at \
    FROM drop_reservations ";
const BY_ID: &str = "WHERE reservation_id = ?";
const OPEN_OF_USER: &str =
    "WHERE user_id = ? AND state = 0 AND expires_at > {now} ORDER BY reservation_id LIMIT ?";
const OF_USER: &str = "WHERE user_id = ? ORDER BY reservation_id";
const FOR_UPDATE: &str = " FOR UPDATE";
/// Any number of processes expire reservations at once, each some of its own.
const SKIP_LOCKED: &str = " FOR UPDATE SKIP LOCKED";

const ADD: &str = "INSERT INTO drop_reservations (reservation_id, drop_id, user_id, account_id, state, quantity, confirmed, reserved_at, \
    expires_at, ended_at)";
const UNITS: &str = "SELECT CAST(COALESCE(SUM(CASE WHEN state = 0 THEN quantity ELSE confirmed END), 0) AS SIGNED) \
    FROM drop_reservations WHERE user_id = ? AND drop_id = ?";
const OWNED: &str = "SELECT CAST(COALESCE(SUM(confirmed), 0) AS SIGNED) FROM drop_reservations WHERE user_id = ? AND drop_id = ?";
const TAKE_BACK: &str = "UPDATE drop_reservations SET confirmed = 0 WHERE reservation_id = ?";

db::row! {
    struct ReservationRow {
        reservation_id: Vec<u8>,
        drop_id: Vec<u8>,
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        state: i32,
        quantity: i64,
        confirmed: i64,
        reserved_at: i64,
        expires_at: i64,
    }
}

/// Adds reservations when the transaction is committed.
pub(crate) fn add(tx: &mut Tx, reservations: &[Reservation]) {
    tx.insert_at_commit(ADD, reservations.iter().map(row));
}

fn row(reservation: &Reservation) -> [Value<'_>; 10] {
    [
        reservation.id.as_uuid().into(),
        reservation.drop.as_uuid().into(),
        reservation.user.as_uuid().into(),
        reservation.account.as_uuid().into(),
        number(reservation.state).into(),
        reservation.quantity.into(),
        reservation.confirmed.into(),
        reservation.reserved_at.into(),
        reservation.expires_at.into(),
        Value::Null,
    ]
}

/// Reads a reservation.
pub(crate) async fn find(connection: &mut Conn, id: ReservationId) -> Result<Option<Reservation>, Error> {
    let text = format!("{COLUMNS}{BY_ID}");
    let row: Option<ReservationRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(raw).await?
    });
    Ok(row.map(read))
}

/// Reads a reservation and holds its row until the transaction ends. Says also whether its time has ended, by the store's clock.
pub(crate) async fn lock(tx: &mut Tx, id: ReservationId) -> Result<Option<(Reservation, bool)>, Error> {
    let text = locking(tx.dialect(), &format!("{COLUMNS}{BY_ID}"), FOR_UPDATE);
    let row: Option<ReservationRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    let Some(reservation) = row.map(read) else { return Ok(None) };
    // After the lock: the time at which a statement begins to wait is not the time at which it has the row.
    let now = format!("SELECT {}", tx.dialect().now());
    let now: i64 = db::on!(tx, connection => {
        sqlx::query_scalar(AssertSqlSafe(now)).fetch_one(connection).await?
    });
    let has_ended = reservation.expires_at <= Timestamp::from_millis(now);
    Ok(Some((reservation, has_ended)))
}

/// Reads the reservations that are held for a user and whose time has not ended.
pub(crate) async fn open_of_user(db: &Db, user: UserId, limit: u32) -> Result<Vec<Reservation>, Error> {
    let text = format!("{COLUMNS}{}", OPEN_OF_USER.replace("{now}", db.dialect().now()));
    let mut connection = db.connection().await?;
    let rows: Vec<ReservationRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text))
            .bind(bytes(user.as_uuid()))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads all reservations of a user and holds their rows.
pub(crate) async fn of_user(tx: &mut Tx, user: UserId) -> Result<Vec<Reservation>, Error> {
    let text = locking(tx.dialect(), &format!("{COLUMNS}{OF_USER}"), FOR_UPDATE);
    let rows: Vec<ReservationRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(user.as_uuid())).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads held reservations whose time has ended, and holds those rows that nobody else holds.
pub(crate) async fn due(tx: &mut Tx, limit: u32) -> Result<Vec<Reservation>, Error> {
    let dialect = tx.dialect();
    let text =
        format!("{COLUMNS} WHERE state = 0 AND expires_at <= {} ORDER BY expires_at LIMIT ?", dialect.now());
    let text = locking(dialect, &text, SKIP_LOCKED);
    let rows: Vec<ReservationRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(i64::from(limit)).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Ends reservations whose rows the transaction holds.
pub(crate) async fn end(tx: &mut Tx, ids: &[ReservationId], as_state: ReservationState) -> Result<(), Error> {
    if ids.is_empty() {
        return Ok(());
    }
    let text = format!(
        "UPDATE drop_reservations SET state = ?, ended_at = {} WHERE reservation_id IN ({{list}})",
        tx.dialect().now()
    );
    let ids: Vec<&[u8]> = ids.iter().map(|id| bytes(id.as_uuid())).collect();
    let (text, padding) = db::list_text(&text, ids.len());
    db::on!(tx, connection => {
        let query = sqlx::query(text).bind(number(as_state));
        db::bind_list!(query, ids, padding).execute(connection).await?;
    });
    Ok(())
}

/// Confirms units of a reservation. One that is held ends; one that had ended before keeps how.
pub(crate) async fn confirm(tx: &mut Tx, id: ReservationId, units: i64) -> Result<(), Error> {
    let text = format!(
        "UPDATE drop_reservations SET confirmed = ?, ended_at = COALESCE(ended_at, {}), \
         state = CASE WHEN state = 0 THEN 1 ELSE state END WHERE reservation_id = ?",
        tx.dialect().now()
    );
    db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(text)).bind(units).bind(bytes(id.as_uuid())).execute(connection).await?;
    });
    Ok(())
}

/// Takes the confirmed units of a reservation back.
pub(crate) async fn take_back(tx: &mut Tx, id: ReservationId) -> Result<(), Error> {
    db::on!(tx, connection => {
        sqlx::query(TAKE_BACK).bind(bytes(id.as_uuid())).execute(connection).await?;
    });
    Ok(())
}

/// Counts the units of a drop that a user has or holds. Exact while the stock's row is locked.
pub(crate) async fn units_of_user(tx: &mut Tx, user: UserId, drop: DropId) -> Result<i64, Error> {
    count(tx, UNITS, user, drop).await
}

/// Counts the units of a drop that a user owns.
pub(crate) async fn owned_by_user(tx: &mut Tx, user: UserId, drop: DropId) -> Result<i64, Error> {
    count(tx, OWNED, user, drop).await
}

async fn count(tx: &mut Tx, text: &'static str, user: UserId, drop: DropId) -> Result<i64, Error> {
    Ok(db::on!(tx, connection => {
        sqlx::query_scalar(text)
            .bind(bytes(user.as_uuid()))
            .bind(bytes(drop.as_uuid()))
            .fetch_one(connection)
            .await?
    }))
}

fn read(row: ReservationRow) -> Reservation {
    Reservation {
        id: ReservationId::from_uuid(uuid(&row.reservation_id)),
        drop: DropId::from_uuid(uuid(&row.drop_id)),
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: AccountId::from_uuid(uuid(&row.account_id)),
        state: match row.state {
            0 => ReservationState::Held,
            1 => ReservationState::Confirmed,
            2 => ReservationState::Released,
            _ => ReservationState::Expired,
        },
        quantity: row.quantity,
        confirmed: row.confirmed,
        reserved_at: Timestamp::from_millis(row.reserved_at),
        expires_at: Timestamp::from_millis(row.expires_at),
    }
}

const fn number(state: ReservationState) -> i32 {
    match state {
        ReservationState::Held => 0,
        ReservationState::Confirmed => 1,
        ReservationState::Released => 2,
        ReservationState::Expired => 3,
    }
}

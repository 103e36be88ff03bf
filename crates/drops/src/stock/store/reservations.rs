//! The rows of reservations.

use std::collections::{BTreeMap, HashMap};

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Error, Tx, Value};
use sqlx::AssertSqlSafe;

use super::{bytes, locking, uuid};
use crate::stock::model::{Reservation, ReservationState};
use crate::{DropId, ReservationId};

const COLUMNS: &str = "SELECT reservation_id, drop_id, user_id, account_id, state, quantity, confirmed, reserved_at, expires_at \
    FROM drop_reservations ";
const BY_ID: &str = "WHERE reservation_id = ?";
const HELD_BY_USER: &str =
    "WHERE user_id = ? AND state = 0 AND expires_at > {now} ORDER BY reservation_id LIMIT ?";
const OF_USER: &str = "WHERE user_id = ? ORDER BY reservation_id";
const FOR_UPDATE: &str = " FOR UPDATE";
/// Lets several processes expire different reservations at once.
const SKIP_LOCKED: &str = " FOR UPDATE SKIP LOCKED";

const ADD: &str = "INSERT INTO drop_reservations (reservation_id, drop_id, user_id, account_id, state, quantity, confirmed, reserved_at, \
    expires_at, ended_at)";
const UNITS: &str = "SELECT CAST(COALESCE(SUM(CASE WHEN state = 0 THEN quantity ELSE confirmed END), 0) AS SIGNED) \
    FROM drop_reservations WHERE user_id = ? AND drop_id = ?";
const OWNED: &str = "SELECT user_id, CAST(SUM(confirmed) AS SIGNED) AS units FROM drop_reservations \
    WHERE drop_id = ? AND user_id IN ({list}) GROUP BY user_id";
const CLEAR_CONFIRMED: &str = "UPDATE drop_reservations SET confirmed = 0 WHERE reservation_id = ?";

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

db::row! {
    struct OwnedRow {
        user_id: Vec<u8>,
        units: i64,
    }
}

/// Which held reservations to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldFilter {
    /// Only those that have not expired: a new order can be paid for.
    InTime,
    /// Also those whose time is over but which are not marked as expired yet: a payment that succeeded still counts.
    AnyTime,
}

/// Inserts reservations at the commit.
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

/// Reads a user's reservations that were made before `before`, the newest first.
pub(crate) async fn newest_of_user(
    connection: &mut Conn,
    user: UserId,
    before: Option<ReservationId>,
    limit: u32,
) -> Result<Vec<Reservation>, Error> {
    let text =
        format!("{COLUMNS}WHERE user_id = ? AND reservation_id < ? ORDER BY reservation_id DESC LIMIT ?");
    let before = before.map_or(Uuid::max(), |id| *id.as_uuid());
    let rows: Vec<ReservationRow> = db::on!(connection, raw => {
        sqlx::query_as(AssertSqlSafe(text))
            .bind(bytes(user.as_uuid()))
            .bind(bytes(&before))
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads a reservation and locks its row until the transaction ends. Also returns whether it has expired by the store's clock.
pub(crate) async fn lock(tx: &mut Tx, id: ReservationId) -> Result<Option<(Reservation, bool)>, Error> {
    let text = locking(tx.dialect(), &format!("{COLUMNS}{BY_ID}"), FOR_UPDATE);
    let row: Option<ReservationRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(id.as_uuid())).fetch_optional(connection).await?
    });
    let Some(reservation) = row.map(read) else { return Ok(None) };
    // Read after the lock: the clock of the locking statement shows when it began to wait for the row.
    let now = format!("SELECT {}", tx.dialect().now());
    let now: i64 = db::on!(tx, connection => {
        sqlx::query_scalar(AssertSqlSafe(now)).fetch_one(connection).await?
    });
    let has_ended = reservation.expires_at <= Timestamp::from_millis(now);
    Ok(Some((reservation, has_ended)))
}

/// Reads and locks the held reservations among `ids`, skipping rows that another transaction has locked. It never waits for a lock, so the
/// clock in the statement is accurate. `ids` must not be empty.
pub(crate) async fn lock_held(
    tx: &mut Tx,
    ids: &[ReservationId],
    which: HeldFilter,
) -> Result<Vec<Reservation>, Error> {
    let in_time = match which {
        HeldFilter::InTime => format!(" AND expires_at > {}", tx.dialect().now()),
        HeldFilter::AnyTime => String::new(),
    };
    let text = format!("{COLUMNS}WHERE reservation_id IN ({{list}}) AND state = 0{in_time}");
    let ids: Vec<&[u8]> = ids.iter().map(|id| bytes(id.as_uuid())).collect();
    let (text, padding) = db::list_text(&locking(tx.dialect(), &text, SKIP_LOCKED), ids.len());
    let rows: Vec<ReservationRow> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads a user's held reservations that have not expired.
pub(crate) async fn held_by_user(db: &Db, user: UserId, limit: u32) -> Result<Vec<Reservation>, Error> {
    let text = format!("{COLUMNS}{}", HELD_BY_USER.replace("{now}", db.dialect().now()));
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

/// Reads all reservations of a user and locks their rows.
pub(crate) async fn lock_reservations_of_user(tx: &mut Tx, user: UserId) -> Result<Vec<Reservation>, Error> {
    let text = locking(tx.dialect(), &format!("{COLUMNS}{OF_USER}"), FOR_UPDATE);
    let rows: Vec<ReservationRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(bytes(user.as_uuid())).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Reads and locks expired reservations, skipping rows that another transaction has locked.
pub(crate) async fn lock_expired(tx: &mut Tx, limit: u32) -> Result<Vec<Reservation>, Error> {
    let dialect = tx.dialect();
    let text =
        format!("{COLUMNS} WHERE state = 0 AND expires_at <= {} ORDER BY expires_at LIMIT ?", dialect.now());
    let text = locking(dialect, &text, SKIP_LOCKED);
    let rows: Vec<ReservationRow> = db::on!(tx, connection => {
        sqlx::query_as(AssertSqlSafe(text)).bind(i64::from(limit)).fetch_all(connection).await?
    });
    Ok(rows.into_iter().map(read).collect())
}

/// Ends reservations whose rows the transaction has locked.
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

/// Confirms units of reservations at the commit. The transaction has locked their rows. A held reservation becomes confirmed; one that ended
/// before keeps its state.
pub(crate) fn confirm(tx: &mut Tx, units: &[(ReservationId, i64)]) {
    let mut by_units: BTreeMap<i64, Vec<ReservationId>> = BTreeMap::new();
    for (id, units) in units {
        by_units.entry(*units).or_default().push(*id);
    }
    for (units, ids) in by_units {
        let head = format!(
            "UPDATE drop_reservations SET confirmed = {units}, ended_at = COALESCE(ended_at, {}), \
             state = CASE WHEN state = 0 THEN 1 ELSE state END WHERE reservation_id",
            tx.dialect().now()
        );
        tx.update_at_commit(&head, ids.iter().map(|id| id.as_uuid().into()));
    }
}

/// Sets the confirmed units of a refunded reservation to 0.
pub(crate) async fn clear_confirmed(tx: &mut Tx, id: ReservationId) -> Result<(), Error> {
    db::on!(tx, connection => {
        sqlx::query(CLEAR_CONFIRMED).bind(bytes(id.as_uuid())).execute(connection).await?;
    });
    Ok(())
}

/// Counts the units of a drop that a user owns or holds. Exact while the stock's row is locked.
pub(crate) async fn units_of_user(tx: &mut Tx, user: UserId, drop: DropId) -> Result<i64, Error> {
    Ok(db::on!(tx, connection => {
        sqlx::query_scalar(UNITS)
            .bind(bytes(user.as_uuid()))
            .bind(bytes(drop.as_uuid()))
            .fetch_one(connection)
            .await?
    }))
}

/// Counts the units of a drop that each of these users owns, in one query. Omits users without reservations. `users` must not be empty.
pub(crate) async fn owned_by_users(
    tx: &mut Tx,
    drop: DropId,
    users: &[UserId],
) -> Result<HashMap<UserId, i64>, Error> {
    let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
    let (text, padding) = db::list_text(OWNED, ids.len());
    let rows: Vec<OwnedRow> = db::on!(tx, connection => {
        let query = sqlx::query_as(text).bind(bytes(drop.as_uuid()));
        db::bind_list!(query, ids, padding).fetch_all(connection).await?
    });
    Ok(rows.iter().map(|row| (UserId::from_uuid(uuid(&row.user_id)), row.units)).collect())
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

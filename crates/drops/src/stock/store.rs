//! The tables of the stock: counts, ledger and reservations.

mod locked;
mod reservations;

use std::collections::HashMap;
use std::time::Duration;

use account::UserId;
use base::Timestamp;
use db::{Conn, Error, Tx};

use super::audit::Sums;
use super::model::{Deltas, LedgerEntry, LedgerKind, LedgerPosition, Levels, Sale};
use crate::model::{DropState, EntryState, LeftReason, Terms};
use crate::store::{drop_state_number, entry_state_number, left_reason_number};
use crate::{DropId, ReservationId};

pub(crate) use crate::store::{bytes, locking, uuid};
pub(crate) use locked::{LedgerNote, LockedStock};
pub(crate) use reservations::{
    HeldFilter, add, clear_confirmed, confirm, end, find, held_by_user, lock, lock_expired, lock_held,
    lock_reservations_of_user, newest_of_user, owned_by_users, units_of_user,
};

const ENTERED: i32 = entry_state_number(EntryState::Entered);
const LEFT: i32 = entry_state_number(EntryState::Left);

const READ: &str =
    "SELECT initial, adjusted, available, reserved, sold, version FROM drop_stock WHERE drop_id = ?";

const READ_ALL: &str = "SELECT drop_id, initial, adjusted, available, reserved, sold, version FROM drop_stock WHERE drop_id IN ({list})";

const SALE: &str = "SELECT drop_id, state, resource, terms FROM drops WHERE drop_id = ?";
const SALES: &str = "SELECT drop_id, state, resource, terms FROM drops WHERE drop_id IN ({list})";

const LEDGER: &str = "SELECT version, entry, kind, adjusted, available, reserved, sold, reservation_id, actor, reason, recorded_at \
    FROM drop_stock_ledger WHERE drop_id = ? AND version <= ? AND (version < ? OR entry < ?) ORDER BY version DESC, entry DESC LIMIT ?";

/// What a reserve needs of its players, read while the stock is locked. The text is valid for SQLite and MySQL; `{now}` is the store's clock.
const RESERVING_PLAYERS: &str = "SELECT e.user_id, e.account_id, e.state, e.admission_id, e.expires_at, e.arrived_at, {now} AS now, \
    (SELECT CAST(COALESCE(SUM(CASE WHEN r.state = 0 THEN r.quantity ELSE r.confirmed END), 0) AS SIGNED) FROM drop_reservations r \
    WHERE r.user_id = e.user_id AND r.drop_id = e.drop_id) AS units \
    FROM drop_entries e WHERE e.drop_id = ? AND e.user_id IN ({list})";

/// An arrival extends the admission to its lifetime and never shortens it.
const ARRIVE_SQLITE: &str = "UPDATE drop_entries SET arrived_at = ?, expires_at = MAX(expires_at, COALESCE(entered_at + ?, 0)) \
    WHERE drop_id = ? AND state = ? AND arrived_at IS NULL AND user_id IN ({list})";
const ARRIVE_MYSQL: &str = "UPDATE drop_entries SET arrived_at = ?, expires_at = GREATEST(expires_at, COALESCE(entered_at + ?, 0)) \
    WHERE drop_id = ? AND state = ? AND arrived_at IS NULL AND user_id IN ({list})";

/// All sums of an audit in one statement, so that it sees one consistent state and reads each table once.
const AUDIT: &str = "SELECT s.initial, s.adjusted, s.available, s.reserved, s.sold, s.version, \
    l.ledger_adjusted, l.ledger_available, l.ledger_reserved, l.ledger_sold, l.ledger_versions, r.held, r.confirmed, o.paid, o.disagreeing \
    FROM drop_stock s \
    JOIN (SELECT CAST(COALESCE(SUM(adjusted), 0) AS SIGNED) AS ledger_adjusted, \
        CAST(COALESCE(SUM(available), 0) AS SIGNED) AS ledger_available, CAST(COALESCE(SUM(reserved), 0) AS SIGNED) AS ledger_reserved, \
        CAST(COALESCE(SUM(sold), 0) AS SIGNED) AS ledger_sold, COUNT(DISTINCT version) AS ledger_versions \
        FROM drop_stock_ledger WHERE drop_id = ?) l \
    JOIN (SELECT CAST(COALESCE(SUM(CASE WHEN state = 0 THEN quantity ELSE 0 END), 0) AS SIGNED) AS held, \
        CAST(COALESCE(SUM(confirmed), 0) AS SIGNED) AS confirmed FROM drop_reservations WHERE drop_id = ?) r \
    JOIN (SELECT CAST(COALESCE(SUM(CASE WHEN p.state = 1 THEN p.quantity ELSE 0 END), 0) AS SIGNED) AS paid, \
        CAST(COALESCE(SUM(CASE WHEN h.confirmed <> CASE WHEN p.state = 1 THEN p.quantity ELSE 0 END THEN 1 ELSE 0 END), 0) AS SIGNED) \
        AS disagreeing FROM drop_orders p JOIN drop_reservations h ON h.reservation_id = p.reservation_id WHERE p.drop_id = ?) o \
    WHERE s.drop_id = ?";

db::row! {
    struct LevelsRow {
        initial: i64,
        adjusted: i64,
        available: i64,
        reserved: i64,
        sold: i64,
        version: i64,
    }
}

db::row! {
    struct DropLevelsRow {
        drop_id: Vec<u8>,
        initial: i64,
        adjusted: i64,
        available: i64,
        reserved: i64,
        sold: i64,
        version: i64,
    }
}

db::row! {
    struct SaleRow {
        drop_id: Vec<u8>,
        state: i32,
        resource: String,
        terms: String,
    }
}

db::row! {
    struct LedgerRow {
        version: i64,
        entry: i32,
        kind: i32,
        adjusted: i64,
        available: i64,
        reserved: i64,
        sold: i64,
        reservation_id: Option<Vec<u8>>,
        actor: Option<String>,
        reason: Option<String>,
        recorded_at: i64,
    }
}

db::row! {
    struct ReservingPlayerRow {
        user_id: Vec<u8>,
        account_id: Vec<u8>,
        state: i32,
        admission_id: Option<Vec<u8>>,
        expires_at: Option<i64>,
        arrived_at: Option<i64>,
        now: i64,
        units: i64,
    }
}

db::row! {
    struct AuditRow {
        initial: i64,
        adjusted: i64,
        available: i64,
        reserved: i64,
        sold: i64,
        version: i64,
        ledger_adjusted: i64,
        ledger_available: i64,
        ledger_reserved: i64,
        ledger_sold: i64,
        ledger_versions: i64,
        held: i64,
        confirmed: i64,
        paid: i64,
        disagreeing: i64,
    }
}

/// What a reserve needs to know of its player.
#[derive(Clone, Debug)]
pub(crate) struct ReservingPlayer {
    pub(crate) user: UserId,
    pub(crate) account: account::AccountId,
    /// The admission, if the player is inside. It may have expired: see [`CurrentAdmission::has_ended`].
    pub(crate) admission: Option<CurrentAdmission>,
    /// Whether the player has used the admission before.
    pub(crate) has_arrived: bool,
    /// How many units of the drop the player owns or holds.
    pub(crate) units: i64,
    /// The store's time.
    pub(crate) now: Timestamp,
}

/// The admission of a player who is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurrentAdmission {
    pub(crate) id: crate::AdmissionId,
    pub(crate) has_ended: bool,
}

/// Reads the counts of a stock.
pub(crate) async fn levels(connection: &mut Conn, drop: DropId) -> Result<Option<Levels>, Error> {
    let row: Option<LevelsRow> = db::on!(connection, raw => {
        sqlx::query_as(READ).bind(bytes(drop.as_uuid())).fetch_optional(raw).await?
    });
    Ok(row.map(Levels::from))
}

/// Reads the counts of these stocks, in any order. `drops` must not be empty.
pub(crate) async fn levels_of(
    connection: &mut Conn,
    drops: &[DropId],
) -> Result<Vec<(DropId, Levels)>, Error> {
    let ids: Vec<&[u8]> = drops.iter().map(|drop| bytes(drop.as_uuid())).collect();
    let (text, padding) = db::list_text(READ_ALL, ids.len());
    let rows: Vec<DropLevelsRow> = db::on!(connection, raw => {
        db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(raw).await?
    });
    let read = |row: DropLevelsRow| {
        let DropLevelsRow { drop_id, initial, adjusted, available, reserved, sold, version } = row;
        let levels = Levels { initial, adjusted, available, reserved, sold, version };
        (DropId::from_uuid(uuid(&drop_id)), levels)
    };
    Ok(rows.into_iter().map(read).collect())
}

/// Reads what a drop sells.
pub(crate) async fn sale(connection: &mut Conn, drop: DropId) -> Result<Option<Sale>, Error> {
    let row: Option<SaleRow> = db::on!(connection, raw => {
        sqlx::query_as(SALE).bind(bytes(drop.as_uuid())).fetch_optional(raw).await?
    });
    row.map(read_sale).transpose()
}

/// Reads what a drop sells in a transaction.
pub(crate) async fn sale_in(tx: &mut Tx, drop: DropId) -> Result<Option<Sale>, Error> {
    let row: Option<SaleRow> = db::on!(tx, connection => {
        sqlx::query_as(SALE).bind(bytes(drop.as_uuid())).fetch_optional(connection).await?
    });
    row.map(read_sale).transpose()
}

/// Reads what these drops sell, in one query. Omits drops that do not exist. `drops` must not be empty.
pub(crate) async fn sales_in(tx: &mut Tx, drops: &[DropId]) -> Result<HashMap<DropId, Sale>, Error> {
    let ids: Vec<&[u8]> = drops.iter().map(|drop| bytes(drop.as_uuid())).collect();
    let (text, padding) = db::list_text(SALES, ids.len());
    let rows: Vec<SaleRow> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(connection).await?
    });
    let read = |row: SaleRow| Ok((DropId::from_uuid(uuid(&row.drop_id)), read_sale(row)?));
    rows.into_iter().map(read).collect()
}

fn read_sale(SaleRow { drop_id, state, resource, terms }: SaleRow) -> Result<Sale, Error> {
    let terms = Terms::from_stored(&terms).map_err(|cause| Error::Corrupt {
        table: "drops",
        row: DropId::from_uuid(uuid(&drop_id)).to_string(),
        cause: cause.to_string(),
    })?;
    Ok(Sale {
        is_open: state == drop_state_number(DropState::Open),
        resource,
        price: terms.price.amount,
        currency: terms.price.currency,
        limit: terms.per_player.into(),
        hold: terms.reservation,
        lifetime: terms.admission.lifetime,
    })
}

/// Reads the players of reserves in one query. The caller holds the lock of the stock, so that no other reserve of the drop counts units
/// at the same time.
pub(crate) async fn reserving_players(
    tx: &mut Tx,
    drop: DropId,
    users: &[UserId],
) -> Result<Vec<ReservingPlayer>, Error> {
    let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
    // Shared locks keep the entries until the commit. Otherwise a concurrent erasure could leave a reservation of an erased user.
    let text = locking(tx.dialect(), &RESERVING_PLAYERS.replace("{now}", tx.dialect().now()), locked::SHARED);
    let (text, padding) = db::list_text(&text, ids.len());
    let rows: Vec<ReservingPlayerRow> = db::on!(tx, connection => {
        let query = sqlx::query_as(text).bind(bytes(drop.as_uuid()));
        db::bind_list!(query, ids, padding).fetch_all(connection).await?
    });
    let read = |row: ReservingPlayerRow| ReservingPlayer {
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: account::AccountId::from_uuid(uuid(&row.account_id)),
        admission: row.admission_id.filter(|_| row.state == ENTERED).map(|id| CurrentAdmission {
            id: crate::AdmissionId::from_uuid(uuid(&id)),
            has_ended: row.expires_at.is_none_or(|expires| expires <= row.now),
        }),
        has_arrived: row.arrived_at.is_some(),
        units: row.units,
        now: Timestamp::from_millis(row.now),
    };
    Ok(rows.into_iter().map(read).collect())
}

/// Records that these players have used their admission. `users` must not be empty.
pub(crate) async fn mark_arrived(
    tx: &mut Tx,
    drop: DropId,
    users: &[UserId],
    at: Timestamp,
    lifetime: Duration,
) -> Result<(), Error> {
    let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
    let (text, padding) = db::list_text(tx.dialect().pick(ARRIVE_SQLITE, ARRIVE_MYSQL), ids.len());
    let lifetime = i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX / 2);
    db::on!(tx, connection => {
        let query =
            sqlx::query(text).bind(at.as_millis()).bind(lifetime).bind(bytes(drop.as_uuid())).bind(ENTERED);
        db::bind_list!(query, ids, padding).execute(connection).await?;
    });
    Ok(())
}

/// Marks players inside as left, at the commit: they have reached the limit and make room for others. The transaction holds the stock's
/// row, as do reserves, which lock entries, too.
pub(crate) fn leave_at_commit(tx: &mut Tx, drop: DropId, users: &[UserId]) {
    let head = format!(
        "UPDATE drop_entries SET state = {LEFT}, left_reason = {}, changed_at = {} \
         WHERE drop_id = X'{}' AND state = {ENTERED} AND user_id",
        left_reason_number(LeftReason::BoughtAll),
        tx.dialect().now(),
        drop.as_uuid().simple(),
    );
    tx.update_at_commit(&head, users.iter().map(|user| user.as_uuid().into()));
}

/// Reads the ledger, the newest entry first: from the start, or the entries before `before`.
pub(crate) async fn ledger(
    connection: &mut Conn,
    drop: DropId,
    before: Option<LedgerPosition>,
    limit: u32,
) -> Result<Vec<LedgerEntry>, Error> {
    let LedgerPosition { version, entry } =
        before.unwrap_or(LedgerPosition { version: i64::MAX, entry: i32::MAX });
    let rows: Vec<LedgerRow> = db::on!(connection, raw => {
        sqlx::query_as(LEDGER)
            .bind(bytes(drop.as_uuid()))
            .bind(version)
            .bind(version)
            .bind(entry)
            .bind(i64::from(limit))
            .fetch_all(raw)
            .await?
    });
    let entry = |row: LedgerRow| LedgerEntry {
        version: row.version,
        entry: row.entry,
        kind: ledger_kind(row.kind),
        by: Deltas {
            adjusted: row.adjusted,
            available: row.available,
            reserved: row.reserved,
            sold: row.sold,
        },
        reservation: row.reservation_id.map(|id| ReservationId::from_uuid(uuid(&id))),
        actor: row.actor,
        reason: row.reason,
        recorded_at: Timestamp::from_millis(row.recorded_at),
    };
    Ok(rows.into_iter().map(entry).collect())
}

/// Reads the sums that an audit compares.
pub(crate) async fn sums(connection: &mut Conn, drop: DropId) -> Result<Option<Sums>, Error> {
    let row: Option<AuditRow> = db::on!(connection, raw => {
        let id = bytes(drop.as_uuid());
        sqlx::query_as(AUDIT).bind(id).bind(id).bind(id).bind(id).fetch_optional(raw).await?
    });
    Ok(row.map(|row| Sums {
        levels: Levels {
            initial: row.initial,
            adjusted: row.adjusted,
            available: row.available,
            reserved: row.reserved,
            sold: row.sold,
            version: row.version,
        },
        ledger: Deltas {
            adjusted: row.ledger_adjusted,
            available: row.ledger_available,
            reserved: row.ledger_reserved,
            sold: row.ledger_sold,
        },
        ledger_versions: row.ledger_versions,
        held: row.held,
        confirmed: row.confirmed,
        paid: row.paid,
        disagreeing: row.disagreeing,
    }))
}

impl From<LevelsRow> for Levels {
    fn from(row: LevelsRow) -> Self {
        let LevelsRow { initial, adjusted, available, reserved, sold, version } = row;
        Self { initial, adjusted, available, reserved, sold, version }
    }
}

const fn kind_number(kind: LedgerKind) -> i32 {
    match kind {
        LedgerKind::Created => 0,
        LedgerKind::Adjusted => 1,
        LedgerKind::Reserved => 2,
        LedgerKind::Released => 3,
        LedgerKind::Expired => 4,
        LedgerKind::Sold => 5,
        LedgerKind::SoldLate => 6,
        LedgerKind::Refunded => 7,
    }
}

const fn ledger_kind(number: i32) -> LedgerKind {
    match number {
        0 => LedgerKind::Created,
        1 => LedgerKind::Adjusted,
        2 => LedgerKind::Reserved,
        3 => LedgerKind::Released,
        4 => LedgerKind::Expired,
        5 => LedgerKind::Sold,
        6 => LedgerKind::SoldLate,
        _ => LedgerKind::Refunded,
    }
}

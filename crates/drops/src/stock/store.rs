//! The tables of the stock: its counts, its ledger, the reservations.

mod locked;
mod reservations;

use std::collections::HashMap;
use std::time::Duration;

use account::UserId;
use base::Timestamp;
use db::{Conn, Error, Tx};

use super::audit::Sums;
use super::model::{Deltas, Kind, LedgerEntry, LedgerPosition, Levels, Sale};
use crate::model::{DropState, EntryState, LeftReason, Terms};
use crate::store::{drop_state_number, entry_state_number, left_reason_number};
use crate::{DropId, ReservationId};

pub(crate) use crate::store::{bytes, locking, uuid};
pub(crate) use locked::{LockedStock, Note};
pub(crate) use reservations::{
    Payable, add, confirm, due, end, find, lock, lock_held, of_user, open_of_user, owned_by_users, take_back,
    units_of_user,
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

/// What reserves must know of the players, under the lock of the stock. SQLite and MySQL read it alike; `{now}` is the store's clock.
const KNOW: &str = "SELECT e.user_id, e.account_id, e.state, e.admission_id, e.expires_at, e.arrived_at, {now} AS now, \
    (SELECT CAST(COALESCE(SUM(CASE WHEN r.state = 0 THEN r.quantity ELSE r.confirmed END), 0) AS SIGNED) FROM drop_reservations r \
    WHERE r.user_id = e.user_id AND r.drop_id = e.drop_id) AS units \
    FROM drop_entries e WHERE e.drop_id = ? AND e.user_id IN ({list})";

/// An arrival lengthens the admission to its lifetime, and never shortens it.
const ARRIVE_SQLITE: &str = "UPDATE drop_entries SET arrived_at = ?, expires_at = MAX(expires_at, COALESCE(entered_at + ?, 0)) \
    WHERE drop_id = ? AND state = ? AND arrived_at IS NULL AND user_id IN ({list})";
const ARRIVE_MYSQL: &str = "UPDATE drop_entries SET arrived_at = ?, expires_at = GREATEST(expires_at, COALESCE(entered_at + ?, 0)) \
    WHERE drop_id = ? AND state = ? AND arrived_at IS NULL AND user_id IN ({list})";

/// All sums of an audit in one statement, which sees one state of the store and reads each table once.
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
    struct KnownRow {
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

/// A player as a reserve must know them.
#[derive(Clone, Debug)]
pub(crate) struct KnownPlayer {
    pub(crate) user: UserId,
    pub(crate) account: account::AccountId,
    /// The admission, if the player is inside and its time has not ended.
    pub(crate) admission: Option<KnownAdmission>,
    /// Whether the player has used the admission before.
    pub(crate) has_arrived: bool,
    /// How many units of the drop they have or hold.
    pub(crate) units: i64,
    /// The store's time.
    pub(crate) now: Timestamp,
}

/// An admission as a reserve must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownAdmission {
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

/// Reads the counts of these stocks, in any order. `drops` is not empty.
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

/// Reads what these drops sell, in one query. Leaves out drops that do not exist. `drops` is not empty.
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

/// Reads what is known of these players, in one query. The caller holds the lock of the stock, so that no other reserve of the drop
/// counts at the same time.
pub(crate) async fn know(tx: &mut Tx, drop: DropId, users: &[UserId]) -> Result<Vec<KnownPlayer>, Error> {
    let ids: Vec<&[u8]> = users.iter().map(|user| bytes(user.as_uuid())).collect();
    // No entry ends before the commit: otherwise an erasure that began before would leave a reservation of a user who is gone.
    let text = locking(tx.dialect(), &KNOW.replace("{now}", tx.dialect().now()), locked::SHARED);
    let (text, padding) = db::list_text(&text, ids.len());
    let rows: Vec<KnownRow> = db::on!(tx, connection => {
        let query = sqlx::query_as(text).bind(bytes(drop.as_uuid()));
        db::bind_list!(query, ids, padding).fetch_all(connection).await?
    });
    let known = |row: KnownRow| KnownPlayer {
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: account::AccountId::from_uuid(uuid(&row.account_id)),
        admission: row.admission_id.filter(|_| row.state == ENTERED).map(|id| KnownAdmission {
            id: crate::AdmissionId::from_uuid(uuid(&id)),
            has_ended: row.expires_at.is_none_or(|expires| expires <= row.now),
        }),
        has_arrived: row.arrived_at.is_some(),
        units: row.units,
        now: Timestamp::from_millis(row.now),
    };
    Ok(rows.into_iter().map(known).collect())
}

/// Notes that these players have used their admission. `users` is not empty.
pub(crate) async fn arrive(
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

/// Lets players who are inside leave when the transaction is committed: they have bought all they may, and make room for the next. The
/// transaction holds the stock's row, since reserves lock entries under it, too.
pub(crate) fn leave(tx: &mut Tx, drop: DropId, users: &[UserId]) {
    let head = format!(
        "UPDATE drop_entries SET state = {LEFT}, left_reason = {}, changed_at = {} \
         WHERE drop_id = X'{}' AND state = {ENTERED} AND user_id",
        left_reason_number(LeftReason::BoughtAll),
        tx.dialect().now(),
        drop.as_uuid().simple(),
    );
    tx.update_at_commit(&head, users.iter().map(|user| user.as_uuid().into()));
}

/// Reads the ledger, the newest entry first, from behind an entry.
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
        kind: kind_of(row.kind),
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

const fn kind_number(kind: Kind) -> i32 {
    match kind {
        Kind::Created => 0,
        Kind::Adjusted => 1,
        Kind::Reserved => 2,
        Kind::Released => 3,
        Kind::Expired => 4,
        Kind::Sold => 5,
        Kind::SoldLate => 6,
        Kind::Refunded => 7,
    }
}

const fn kind_of(number: i32) -> Kind {
    match number {
        0 => Kind::Created,
        1 => Kind::Adjusted,
        2 => Kind::Reserved,
        3 => Kind::Released,
        4 => Kind::Expired,
        5 => Kind::Sold,
        6 => Kind::SoldLate,
        _ => Kind::Refunded,
    }
}

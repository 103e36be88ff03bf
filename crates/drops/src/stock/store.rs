//! The tables of the stock: its counts, its ledger, the reservations.

mod locked;
mod reservations;

use account::UserId;
use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Dialect, Error, Tx};
use sqlx::AssertSqlSafe;

use super::audit::Sums;
use super::model::{Deltas, Kind, LedgerEntry, Levels, Sale};
use crate::model::{DropState, Terms};
use crate::store::drop_state_number;
use crate::{DropId, ReservationId};

pub(crate) use locked::{LockedStock, Note};
pub(crate) use reservations::{
    add, confirm, due, end, find, lock, of_user, open_of_user, owned_by_user, take_back, units_of_user,
};

const ENTERED: i32 = 1;
const LEFT: i32 = 2;

const READ: &str =
    "SELECT initial, adjusted, available, reserved, sold, version FROM drop_stock WHERE drop_id = ?";

const SALE: &str = "SELECT state, resource, terms FROM drops WHERE drop_id = ?";

const LEDGER: &str = "SELECT version, entry, kind, adjusted, available, reserved, sold, reservation_id, actor, reason, recorded_at \
    FROM drop_stock_ledger WHERE drop_id = ? AND version < ? ORDER BY version DESC, entry DESC LIMIT ?";

/// What reserves must know of the players, under the lock of the stock. SQLite and MySQL read it alike; `{now}` is the store's clock.
const KNOW: &str = "SELECT e.user_id, e.account_id, e.state, e.admission_id, e.expires_at, {now} AS now, \
    (SELECT CAST(COALESCE(SUM(CASE WHEN r.state = 0 THEN r.quantity ELSE r.confirmed END), 0) AS SIGNED) FROM drop_reservations r \
    WHERE r.user_id = e.user_id AND r.drop_id = e.drop_id) AS units \
    FROM drop_entries e WHERE e.drop_id = ? AND e.user_id IN ";

const LEAVE: &str =
    "UPDATE drop_entries SET state = ?, changed_at = {now} WHERE drop_id = ? AND user_id = ? AND state = ?";

/// All sums of an audit in one statement, which sees one state of the store.
const AUDIT: &str = "SELECT s.initial, s.adjusted, s.available, s.reserved, s.sold, s.version, \
    (SELECT CAST(COALESCE(SUM(l.adjusted), 0) AS SIGNED) FROM drop_stock_ledger l WHERE l.drop_id = s.drop_id) AS ledger_adjusted, \
    (SELECT CAST(COALESCE(SUM(l.available), 0) AS SIGNED) FROM drop_stock_ledger l WHERE l.drop_id = s.drop_id) AS ledger_available, \
    (SELECT CAST(COALESCE(SUM(l.reserved), 0) AS SIGNED) FROM drop_stock_ledger l WHERE l.drop_id = s.drop_id) AS ledger_reserved, \
    (SELECT CAST(COALESCE(SUM(l.sold), 0) AS SIGNED) FROM drop_stock_ledger l WHERE l.drop_id = s.drop_id) AS ledger_sold, \
    (SELECT COUNT(DISTINCT l.version) FROM drop_stock_ledger l WHERE l.drop_id = s.drop_id) AS ledger_versions, \
    (SELECT CAST(COALESCE(SUM(r.quantity), 0) AS SIGNED) FROM drop_reservations r WHERE r.drop_id = s.drop_id AND r.state = 0) AS held, \
    (SELECT CAST(COALESCE(SUM(r.confirmed), 0) AS SIGNED) FROM drop_reservations r WHERE r.drop_id = s.drop_id) AS confirmed, \
    (SELECT CAST(COALESCE(SUM(o.quantity), 0) AS SIGNED) FROM drop_orders o WHERE o.drop_id = s.drop_id AND o.state = 1) AS paid, \
    (SELECT COUNT(*) FROM drop_orders o JOIN drop_reservations r ON r.reservation_id = o.reservation_id \
        WHERE o.drop_id = s.drop_id AND r.confirmed <> CASE WHEN o.state = 1 THEN o.quantity ELSE 0 END) AS disagreeing \
    FROM drop_stock s WHERE s.drop_id = ?";

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
    struct SaleRow {
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
    pub(crate) admission: Option<Admission>,
    /// How many units of the drop they have or hold.
    pub(crate) units: i64,
    /// The store's time.
    pub(crate) now: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
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

/// Reads what a drop sells.
pub(crate) async fn sale(connection: &mut Conn, drop: DropId) -> Result<Option<Sale>, Error> {
    let row: Option<SaleRow> = db::on!(connection, raw => {
        sqlx::query_as(SALE).bind(bytes(drop.as_uuid())).fetch_optional(raw).await?
    });
    row.map(|row| read_sale(drop, row.state, row.resource, &row.terms)).transpose()
}

/// Reads what a drop sells in a transaction.
pub(crate) async fn sale_in(tx: &mut Tx, drop: DropId) -> Result<Option<Sale>, Error> {
    let row: Option<SaleRow> = db::on!(tx, connection => {
        sqlx::query_as(SALE).bind(bytes(drop.as_uuid())).fetch_optional(connection).await?
    });
    row.map(|row| read_sale(drop, row.state, row.resource, &row.terms)).transpose()
}

fn read_sale(drop: DropId, state: i32, resource: String, terms: &str) -> Result<Sale, Error> {
    let terms = Terms::from_stored(terms).map_err(|cause| Error::Corrupt {
        table: "drops",
        row: drop.to_string(),
        cause: cause.to_string(),
    })?;
    Ok(Sale {
        is_open: state == drop_state_number(DropState::Open),
        resource,
        price: terms.price.amount,
        currency: terms.price.currency,
        limit: terms.per_player.into(),
        hold: terms.reservation,
    })
}

/// Reads what is known of these players, in one query. The caller holds the lock of the stock, so that no other reserve of the drop
/// counts at the same time.
pub(crate) async fn know(tx: &mut Tx, drop: DropId, users: &[UserId]) -> Result<Vec<KnownPlayer>, Error> {
    let text = KNOW.replace("{now}", tx.dialect().now()) + &places(users.len());
    let rows: Vec<KnownRow> = db::on!(tx, connection => {
        let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(bytes(drop.as_uuid()));
        for user in padded(users) {
            query = query.bind(bytes(user.as_uuid()));
        }
        query.fetch_all(connection).await?
    });
    let known = |row: KnownRow| KnownPlayer {
        user: UserId::from_uuid(uuid(&row.user_id)),
        account: account::AccountId::from_uuid(uuid(&row.account_id)),
        admission: row.admission_id.filter(|_| row.state == ENTERED).map(|id| Admission {
            id: crate::AdmissionId::from_uuid(uuid(&id)),
            has_ended: row.expires_at.is_none_or(|expires| expires <= row.now),
        }),
        units: row.units,
        now: Timestamp::from_millis(row.now),
    };
    Ok(rows.into_iter().map(known).collect())
}

/// Lets a player who is inside leave: they have bought all they may, and make room for the next.
pub(crate) async fn leave(tx: &mut Tx, drop: DropId, user: UserId) -> Result<(), Error> {
    let text = LEAVE.replace("{now}", tx.dialect().now());
    db::on!(tx, connection => {
        sqlx::query(AssertSqlSafe(text))
            .bind(LEFT)
            .bind(bytes(drop.as_uuid()))
            .bind(bytes(user.as_uuid()))
            .bind(ENTERED)
            .execute(connection)
            .await?;
    });
    Ok(())
}

/// Reads the ledger, the newest entry first, from before a version.
pub(crate) async fn ledger(
    connection: &mut Conn,
    drop: DropId,
    before: i64,
    limit: u32,
) -> Result<Vec<LedgerEntry>, Error> {
    let rows: Vec<LedgerRow> = db::on!(connection, raw => {
        sqlx::query_as(LEDGER)
            .bind(bytes(drop.as_uuid()))
            .bind(before)
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
        sqlx::query_as(AUDIT).bind(bytes(drop.as_uuid())).fetch_optional(raw).await?
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

/// A list of placeholders, padded to a power of two: there are few texts, and each is prepared once.
fn places(count: usize) -> String {
    format!("({})", vec!["?"; count.next_power_of_two()].join(", "))
}

/// The values for [`places`]: the last one fills up.
fn padded<T>(values: &[T]) -> impl Iterator<Item = &T> {
    let padding = values.last().into_iter().cycle();
    values.iter().chain(padding).take(values.len().next_power_of_two())
}

pub(crate) fn bytes(id: &Uuid) -> &[u8] {
    &id.as_bytes()[..]
}

pub(crate) fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}

/// `text` with the lock that MySQL needs. SQLite has one writer.
pub(crate) fn locking(dialect: Dialect, text: &str, lock: &str) -> String {
    format!(
        "{text}{}",
        match dialect {
            Dialect::Sqlite => "",
            Dialect::MySql => lock,
        }
    )
}

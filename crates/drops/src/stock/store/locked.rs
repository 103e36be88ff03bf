//! A locked stock and the changes that a transaction makes to it.

use db::{Error, Tx, Value};
use runtime::fault;
use sqlx::AssertSqlSafe;

use super::{Levels, LevelsRow, READ, SALE, SaleRow, bytes, kind_number, locking, read_sale};
use crate::stock::model::{Movement, Sale};
use crate::{DropId, ReservationId};

const FOR_UPDATE: &str = " FOR UPDATE";
/// Keeps rows unchanged until the commit: no reserve commits after the drop was closed or the player has left.
pub(super) const SHARED: &str = " LOCK IN SHARE MODE";

/// The row exists and is locked, so REPLACE updates it. It is sent in the same packet as the other writes of the commit.
const SAVE: &str = "REPLACE INTO drop_stock (drop_id, initial, adjusted, available, reserved, sold, version)";
const ADD_TO_LEDGER: &str = "INSERT INTO drop_stock_ledger (drop_id, version, entry, kind, adjusted, available, reserved, sold, \
    reservation_id, actor, reason, recorded_at)";

/// A stock whose row this transaction has locked. [`move_units`](Self::move_units) changes the counts in memory, and [`save`](Self::save)
/// writes them with their ledger entries.
#[derive(Debug)]
#[must_use]
pub(crate) struct LockedStock {
    drop: DropId,
    levels: Levels,
    pending: Vec<PendingEntry>,
}

/// A movement that has to be written to the ledger.
#[derive(Debug)]
struct PendingEntry {
    movement: Movement,
    reservation: Option<ReservationId>,
    note: Option<LedgerNote>,
}

/// Who adjusted a stock, and why.
#[derive(Clone, Debug)]
pub(crate) struct LedgerNote {
    pub(crate) actor: String,
    /// None for the first entry of a ledger.
    pub(crate) reason: Option<String>,
}

impl LockedStock {
    /// Returns the empty stock of a new drop, in the transaction that creates it.
    pub(crate) fn new(drop: DropId) -> Self {
        Self { drop, levels: Levels::default(), pending: Vec::new() }
    }

    /// Locks the row of a stock. Returns none if there is no such drop.
    pub(crate) async fn lock(tx: &mut Tx, drop: DropId) -> Result<Option<Self>, Error> {
        let text = locking(tx.dialect(), READ, FOR_UPDATE);
        let row: Option<LevelsRow> = db::on!(tx, connection => {
            sqlx::query_as(AssertSqlSafe(text)).bind(bytes(drop.as_uuid())).fetch_optional(connection).await?
        });
        Ok(row.map(|row| Self { drop, levels: row.into(), pending: Vec::new() }))
    }

    /// Locks the row of a stock, takes a shared lock on its drop, and reads what the drop sells.
    pub(crate) async fn lock_with_sale(tx: &mut Tx, drop: DropId) -> Result<Option<(Self, Sale)>, Error> {
        let Some(mut stock) = Self::lock(tx, drop).await? else { return Ok(None) };
        let text = locking(tx.dialect(), SALE, SHARED);
        let row: Option<SaleRow> = db::on!(tx, connection => {
            sqlx::query_as(AssertSqlSafe(text)).bind(bytes(drop.as_uuid())).fetch_optional(connection).await?
        });
        let sale = row.map(read_sale).transpose()?;
        // A planted fault forgets that a unit was sold. The sum stays right, or the table's constraint would refuse it.
        if stock.levels.sold > 0 && fault::is_planted("drops.oversell") {
            stock.levels.sold -= 1;
            stock.levels.available += 1;
        }
        Ok(sale.map(|sale| (stock, sale)))
    }

    pub(crate) const fn levels(&self) -> Levels {
        self.levels
    }

    /// Moves units between the counts. Returns false and changes nothing if a count would become negative.
    #[must_use]
    pub(crate) fn move_units(&mut self, movement: Movement, reservation: Option<ReservationId>) -> bool {
        self.apply(movement, reservation, None)
    }

    /// Adds the initial units to a new stock, with the name of the operator.
    #[must_use]
    pub(crate) fn create(&mut self, units: i64, note: Option<LedgerNote>) -> bool {
        self.apply(Movement::Create(units), None, note)
    }

    /// Adds or removes units, with the name of the operator and the reason.
    #[must_use]
    pub(crate) fn adjust(&mut self, by: i64, note: LedgerNote) -> bool {
        self.apply(Movement::Adjust(by), None, Some(note))
    }

    fn apply(
        &mut self,
        movement: Movement,
        reservation: Option<ReservationId>,
        note: Option<LedgerNote>,
    ) -> bool {
        let Some(next) = self.levels.after(movement) else { return false };
        self.levels = next;
        self.pending.push(PendingEntry { movement, reservation, note });
        true
    }

    /// Writes the counts and their ledger entries at the commit. Returns the counts as they will be then.
    pub(crate) fn save(self, tx: &mut Tx) -> Levels {
        let Self { drop, mut levels, pending } = self;
        if pending.is_empty() {
            return levels;
        }
        levels.version += 1;
        let id = drop.as_uuid();
        tx.insert_at_commit(
            SAVE,
            [[
                id.into(),
                levels.initial.into(),
                levels.adjusted.into(),
                levels.available.into(),
                levels.reserved.into(),
                levels.sold.into(),
                levels.version.into(),
            ]],
        );
        let rows =
            (0..).zip(&pending).map(|(number, entry)| ledger_row(&drop, levels.version, number, entry));
        tx.insert_at_commit(ADD_TO_LEDGER, rows);
        levels
    }
}

fn ledger_row<'a>(drop: &'a DropId, version: i64, number: i64, entry: &'a PendingEntry) -> [Value<'a>; 12] {
    let by = entry.movement.deltas();
    [
        drop.as_uuid().into(),
        version.into(),
        number.into(),
        kind_number(entry.movement.kind()).into(),
        by.adjusted.into(),
        by.available.into(),
        by.reserved.into(),
        by.sold.into(),
        entry.reservation.as_ref().map(ReservationId::as_uuid).into(),
        entry.note.as_ref().map(|note| note.actor.as_str()).into(),
        entry.note.as_ref().and_then(|note| note.reason.as_deref()).into(),
        Value::Now,
    ]
}

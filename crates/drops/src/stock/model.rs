//! The counts of a stock and the movements between them. Pure rules, without a store.

use std::time::Duration;

use account::{AccountId, UserId};
use base::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AdmissionId, DropId, ReservationId};

/// The largest stock of a drop, small enough that sums of counts cannot overflow.
pub const MAX_UNITS: i64 = 1_000_000_000_000;

/// The counts of a stock: `initial + adjusted = available + reserved + sold`, and only `adjusted` may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    pub initial: i64,
    /// The net of all adjustments by operators.
    pub adjusted: i64,
    pub available: i64,
    pub reserved: i64,
    pub sold: i64,
    /// Incremented by every transaction that changes the stock. The larger of two versions is newer.
    pub version: i64,
}

/// Why the counts of a stock changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerKind {
    Created,
    Adjusted,
    Reserved,
    Released,
    Expired,
    Sold,
    /// Sold after the reservation had expired or was released.
    SoldLate,
    Refunded,
}

/// One change of the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Movement {
    Create(i64),
    Adjust(i64),
    /// From available to reserved.
    Reserve(i64),
    /// From reserved to available, by the player or because the payment failed.
    Release(i64),
    /// From reserved to available, because the reservation expired.
    Expire(i64),
    /// From reserved to sold; the rest of the reservation becomes available.
    Sell {
        units: i64,
        rest: i64,
    },
    /// From available to sold: the reservation had ended.
    SellLate(i64),
    /// From sold to available.
    Refund(i64),
}

/// The change of each count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deltas {
    pub adjusted: i64,
    pub available: i64,
    pub reserved: i64,
    pub sold: i64,
}

impl Movement {
    pub(crate) const fn kind(self) -> LedgerKind {
        match self {
            Self::Create(_) => LedgerKind::Created,
            Self::Adjust(_) => LedgerKind::Adjusted,
            Self::Reserve(_) => LedgerKind::Reserved,
            Self::Release(_) => LedgerKind::Released,
            Self::Expire(_) => LedgerKind::Expired,
            Self::Sell { .. } => LedgerKind::Sold,
            Self::SellLate(_) => LedgerKind::SoldLate,
            Self::Refund(_) => LedgerKind::Refunded,
        }
    }

    pub(crate) const fn deltas(self) -> Deltas {
        let (adjusted, available, reserved, sold) = match self {
            Self::Create(units) => (0, units, 0, 0),
            Self::Adjust(by) => (by, by, 0, 0),
            Self::Reserve(units) => (0, -units, units, 0),
            Self::Release(units) | Self::Expire(units) => (0, units, -units, 0),
            Self::Sell { units, rest } => (0, rest, -(units + rest), units),
            Self::SellLate(units) => (0, -units, 0, units),
            Self::Refund(units) => (0, units, 0, -units),
        };
        Deltas { adjusted, available, reserved, sold }
    }
}

impl Levels {
    /// Returns the counts after a movement, or none if one of them would be negative. The version stays, since it counts transactions.
    pub(crate) fn after(self, movement: Movement) -> Option<Self> {
        let by = movement.deltas();
        let initial = match movement {
            Movement::Create(units) => self.initial + units,
            _ => self.initial,
        };
        let next = Self {
            initial,
            adjusted: self.adjusted + by.adjusted,
            available: self.available + by.available,
            reserved: self.reserved + by.reserved,
            sold: self.sold + by.sold,
            version: self.version,
        };
        (next.available >= 0 && next.reserved >= 0 && next.sold >= 0).then_some(next)
    }

    /// Returns the total number of units.
    pub const fn total(&self) -> i64 {
        self.initial + self.adjusted
    }
}

/// The admission that a verified token names. It lets a player reserve; the reserve checks the row of the entry again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedAdmission {
    pub drop: DropId,
    pub user: UserId,
    pub admission: AdmissionId,
}

/// The state of a reservation. HELD ends once, in one of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    Held,
    Confirmed,
    Released,
    Expired,
}

impl ReservationState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Confirmed => "CONFIRMED",
            Self::Released => "RELEASED",
            Self::Expired => "EXPIRED",
        }
    }
}

/// Units held for a player.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub id: ReservationId,
    pub drop: DropId,
    pub user: UserId,
    pub account: AccountId,
    pub state: ReservationState,
    pub quantity: i64,
    /// How many of the units the player owns: 0 until they are paid for, and 0 after a refund.
    pub confirmed: i64,
    pub reserved_at: Timestamp,
    pub expires_at: Timestamp,
}

/// The position of an entry in the ledger of a stock. One transaction may write several entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LedgerPosition {
    pub version: i64,
    pub entry: i32,
}

/// An entry of the stock's ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The version of the stock after the transaction that wrote the entry.
    pub version: i64,
    /// The index of the entry within its transaction.
    pub entry: i32,
    pub kind: LedgerKind,
    pub by: Deltas,
    pub reservation: Option<ReservationId>,
    /// Who created or adjusted the stock.
    pub actor: Option<String>,
    pub reason: Option<String>,
    pub recorded_at: Timestamp,
}

impl LedgerEntry {
    pub const fn position(&self) -> LedgerPosition {
        LedgerPosition { version: self.version, entry: self.entry }
    }
}

/// What a drop sells, and the terms that stock and orders need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sale {
    pub(crate) is_open: bool,
    /// The resource that the buyer's account is granted.
    pub(crate) resource: String,
    /// The price of one unit, in the smallest unit of the currency.
    pub(crate) price: i64,
    pub(crate) currency: String,
    /// How many units one player may own or hold.
    pub(crate) limit: i64,
    /// How long a reservation lasts.
    pub(crate) hold: Duration,
    /// How long a used admission lasts, counted from when it was given.
    pub(crate) lifetime: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_movement_keeps_the_total() {
        let start = Levels { initial: 10, adjusted: 2, available: 4, reserved: 5, sold: 3, version: 7 };
        for movement in [
            Movement::Create(3),
            Movement::Adjust(-4),
            Movement::Adjust(9),
            Movement::Reserve(4),
            Movement::Release(5),
            Movement::Expire(1),
            Movement::Sell { units: 3, rest: 2 },
            Movement::SellLate(4),
            Movement::Refund(3),
        ] {
            let next = start.after(movement).unwrap();
            assert_eq!(next.total(), next.available + next.reserved + next.sold, "{movement:?}");
        }
    }

    #[test]
    fn no_count_becomes_negative() {
        let start = Levels { initial: 3, adjusted: 0, available: 1, reserved: 1, sold: 1, version: 1 };
        for movement in [
            Movement::Adjust(-2),
            Movement::Reserve(2),
            Movement::Release(2),
            Movement::Expire(2),
            Movement::Sell { units: 1, rest: 1 },
            Movement::SellLate(2),
            Movement::Refund(2),
        ] {
            assert_eq!(start.after(movement), None, "{movement:?}");
        }
    }
}

//! The counts of a stock and the movements between them. Nothing here knows a store.

use std::time::Duration;

use account::{AccountId, UserId};
use base::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AdmissionId, DropId, ReservationId};

/// The largest stock of a drop. Sums of counts do not overflow.
pub const MAX_UNITS: i64 = 1_000_000_000_000;

/// The counts of a stock: `initial + adjusted = available + reserved + sold`, and only `adjusted` may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    pub initial: i64,
    /// What operators have added and taken away since.
    pub adjusted: i64,
    pub available: i64,
    pub reserved: i64,
    pub sold: i64,
    /// Counts up with every transaction that changes the stock. Of two, the larger one is newer.
    pub version: i64,
}

/// Why the counts of a stock changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Created,
    Adjusted,
    Reserved,
    Released,
    Expired,
    Sold,
    /// Sold after the reservation had ended.
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
    /// From reserved to available, because the time has ended.
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

/// By how much each count changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deltas {
    pub adjusted: i64,
    pub available: i64,
    pub reserved: i64,
    pub sold: i64,
}

impl Movement {
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Create(_) => Kind::Created,
            Self::Adjust(_) => Kind::Adjusted,
            Self::Reserve(_) => Kind::Reserved,
            Self::Release(_) => Kind::Released,
            Self::Expire(_) => Kind::Expired,
            Self::Sell { .. } => Kind::Sold,
            Self::SellLate(_) => Kind::SoldLate,
            Self::Refund(_) => Kind::Refunded,
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
    /// Returns the counts after a movement. None if one of them would be negative. The version stays: it counts transactions.
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

    /// Returns how many units there are in all.
    pub const fn total(&self) -> i64 {
        self.initial + self.adjusted
    }
}

/// What lets a player reserve: the admission that a verified token names. The row of the entry is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub drop: DropId,
    pub user: UserId,
    pub admission: AdmissionId,
}

/// Where a reservation stands. HELD ends once, in one of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationState {
    Held,
    Confirmed,
    Released,
    Expired,
}

impl ReservationState {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Confirmed => "CONFIRMED",
            Self::Released => "RELEASED",
            Self::Expired => "EXPIRED",
        }
    }
}

/// Units that are held for a player.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub id: ReservationId,
    pub drop: DropId,
    pub user: UserId,
    pub account: AccountId,
    pub state: ReservationState,
    pub quantity: i64,
    /// How many of them the player owns: none until they are paid for, and none after a refund.
    pub confirmed: i64,
    pub reserved_at: Timestamp,
    pub expires_at: Timestamp,
}

/// The position of an entry in the ledger of a stock. One transaction may have written several entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LedgerPosition {
    pub version: i64,
    pub entry: i32,
}

/// An entry of the stock's ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The version of the stock after the transaction that wrote it.
    pub version: i64,
    /// The number of the entry within its transaction.
    pub entry: i32,
    pub kind: Kind,
    pub by: Deltas,
    pub reservation: Option<ReservationId>,
    /// Of an adjustment.
    pub actor: Option<String>,
    pub reason: Option<String>,
    pub recorded_at: Timestamp,
}

impl LedgerEntry {
    pub const fn position(&self) -> LedgerPosition {
        LedgerPosition { version: self.version, entry: self.entry }
    }
}

/// What a drop sells and under which rules, as far as stock and orders need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sale {
    pub(crate) is_open: bool,
    /// The resource that the buyer's account is granted.
    pub(crate) resource: String,
    /// Of one unit, in the smallest unit of the currency.
    pub(crate) price: i64,
    pub(crate) currency: String,
    /// How many units one player may have or hold.
    pub(crate) limit: i64,
    /// How long a reservation lasts.
    pub(crate) hold: Duration,
    /// How long an admission lasts after the player has arrived, counted from when they entered.
    pub(crate) lifetime: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_movement_keeps_the_balance() {
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

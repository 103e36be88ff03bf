//! The audit of a stock: checks that every unit is accounted for.

use super::model::{Deltas, Levels};

/// The result of an audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    pub levels: Levels,
    /// Empty if every unit is accounted for.
    pub differences: Vec<Difference>,
}

impl Audit {
    pub fn is_sound(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Two numbers that should be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub what: &'static str,
    pub expected: i64,
    pub found: i64,
}

/// The sums of the tables, read from one consistent state of the database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub(crate) levels: Levels,
    pub(crate) ledger: Deltas,
    /// How many transactions wrote to the ledger.
    pub(crate) ledger_versions: i64,
    /// Units of held reservations.
    pub(crate) held: i64,
    /// Units that are owned according to the reservations.
    pub(crate) confirmed: i64,
    /// Units of paid orders.
    pub(crate) paid: i64,
    /// Orders that contradict their reservation.
    pub(crate) disagreeing: i64,
}

impl Sums {
    pub(crate) fn audit(&self) -> Audit {
        let Self { levels, ledger, ledger_versions, held, confirmed, paid, disagreeing } = *self;
        let Levels { adjusted, available, reserved, sold, version, .. } = levels;
        let compared = [
            (
                "available + reserved + sold, against initial + adjusted",
                levels.total(),
                available + reserved + sold,
            ),
            ("adjusted, against the ledger", ledger.adjusted, adjusted),
            ("available, against the ledger", ledger.available, available),
            ("reserved, against the ledger", ledger.reserved, reserved),
            ("sold, against the ledger", ledger.sold, sold),
            ("versions in the ledger, against the version", version, ledger_versions),
            ("reserved, against held reservations", held, reserved),
            ("sold, against confirmed reservations", confirmed, sold),
            ("sold, against paid orders", paid, sold),
            ("orders that contradict their reservation", 0, disagreeing),
            (
                "negative counts",
                0,
                [available, reserved, sold].iter().filter(|count| **count < 0).count() as i64,
            ),
        ];
        let differs = |&(_, expected, found): &(&str, i64, i64)| expected != found;
        let difference = |(what, expected, found)| Difference { what, expected, found };
        Audit { levels, differences: compared.into_iter().filter(differs).map(difference).collect() }
    }
}

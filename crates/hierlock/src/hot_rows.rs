//! Statistics on the rows with the longest waits.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::plan::{Plan, Row};

/// A shorter acquisition was only a round trip, not a wait.
const MIN_WAIT: Duration = Duration::from_millis(2);
/// How many rows are kept. Beyond that, the half with the shortest waits is dropped.
const MAX_ROWS: usize = 1024;

/// The waits for a row since the process started.
///
/// The server does not report which of several rows an acquisition waited for, so the wait counts for all of them. The contended row is
/// part of every such acquisition and so ends up on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotRow {
    pub row: Row,
    pub waits: u64,
    pub total: Duration,
    pub longest: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct HotRows(Mutex<HashMap<Row, HotRow>>);

impl HotRows {
    pub(crate) fn record(&self, plan: &Plan, took: Duration) {
        if took < MIN_WAIT {
            return;
        }
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, _) in plan.rows() {
            let none = HotRow { row: *row, waits: 0, total: Duration::ZERO, longest: Duration::ZERO };
            let hot = rows.entry(*row).or_insert(none);
            hot.waits += 1;
            hot.total += took;
            hot.longest = hot.longest.max(took);
        }
        if rows.len() > MAX_ROWS {
            let mut totals: Vec<Duration> = rows.values().map(|hot| hot.total).collect();
            let (_, median, _) = totals.select_nth_unstable(MAX_ROWS / 2);
            let median = *median;
            rows.retain(|_, hot| hot.total > median);
        }
    }

    /// Returns the rows with the longest total waits, the worst first.
    pub(crate) fn worst(&self, limit: usize) -> Vec<HotRow> {
        let mut rows: Vec<HotRow> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect();
        rows.sort_unstable_by_key(|hot| (std::cmp::Reverse(hot.total), hot.row));
        rows.truncate(limit);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    #[test]
    fn contended_row_is_on_top_and_memory_is_bounded() {
        let hot = HotRows::default();
        for number in 0..5_000 {
            let id = number.to_string();
            let plan = Plan::new([Target::account("celebrity", &id).unwrap()], 0).unwrap();
            hot.record(&plan, Duration::from_millis(3 + number % 5));
            hot.record(&plan, Duration::from_micros(300));
        }
        let worst = hot.worst(3);
        let celebrity = Plan::new([Target::user("celebrity").unwrap()], 0).unwrap();
        assert_eq!(worst.len(), 3);
        assert_eq!(worst[0].row, celebrity.rows()[0].0);
        assert_eq!((worst[0].waits, worst[0].longest), (5_000, Duration::from_millis(7)));
        assert!(worst.is_sorted_by(|one, other| one.total >= other.total));
        assert!(hot.worst(usize::MAX).len() <= MAX_ROWS);
    }
}

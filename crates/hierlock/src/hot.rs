//! Which rows are waited for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::plan::{Plan, Row};

/// What takes less long than this has not waited, it has only been to the server and back.
const WAITED: Duration = Duration::from_millis(2);
/// How many rows are remembered. When there are more, those that were waited for the least are forgotten.
const REMEMBERED: usize = 1024;

/// How long a row has been waited for since the process began.
///
/// The server does not say which of several rows an acquisition waited for, so the wait counts for each of them: the row
/// that is to blame is in all of them, and comes out on top.
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
    pub(crate) fn waited(&self, plan: &Plan, took: Duration) {
        if took < WAITED {
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
        if rows.len() > REMEMBERED {
            let mut totals: Vec<Duration> = rows.values().map(|hot| hot.total).collect();
            let (_, least, _) = totals.select_nth_unstable(REMEMBERED / 2);
            let least = *least;
            rows.retain(|_, hot| hot.total > least);
        }
    }

    /// The rows that were waited for the longest, the worst first.
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
    fn the_row_that_all_wait_for_comes_out_on_top_and_memory_is_bounded() {
        let hot = HotRows::default();
        for number in 0..5_000 {
            let id = number.to_string();
            let plan = Plan::new([Target::account("celebrity", &id).unwrap()], 0).unwrap();
            hot.waited(&plan, Duration::from_millis(3 + number % 5));
            hot.waited(&plan, Duration::from_micros(300));
        }
        let worst = hot.worst(3);
        let celebrity = Plan::new([Target::user("celebrity").unwrap()], 0).unwrap();
        assert_eq!(worst.len(), 3);
        assert_eq!(worst[0].row, celebrity.rows()[0].0);
        assert_eq!((worst[0].waits, worst[0].longest), (5_000, Duration::from_millis(7)));
        assert!(worst.is_sorted_by(|one, other| one.total >= other.total));
        assert!(hot.worst(usize::MAX).len() <= REMEMBERED);
    }
}

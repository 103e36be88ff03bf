//! How often watched tickets are checked.
//!
//! Engines of ours push each assignment, so a check finds nothing new, and a slow pace is enough. An engine of another
//! program pushes nothing. Once one is noticed, by an assignment that nobody pushed or by its lock, the pace is that of
//! minimatch's own frontends.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::TicketId;

/// The pace while an engine of another program assigns.
const FAST: Duration = Duration::from_millis(100);

/// Bounds the cost of the fast pace: how many tickets are read per second.
const MAX_READS: u32 = 50_000;

/// How long after an assignment was found its push may still come: our engines push after the match is recorded.
const PUSH_MAY_TAKE: Duration = Duration::from_secs(2);

/// How long after its last assignment an engine of another program counts as running.
const MEMORY: Duration = Duration::from_secs(3600);

/// Decides when the next check is due.
#[derive(Debug)]
pub(super) struct Pace {
    slow: Duration,
    /// Assignments that a check found, and that nobody has pushed yet.
    unpushed: HashMap<TicketId, Instant>,
    foreign_until: Option<Instant>,
}

impl Pace {
    pub(super) fn new(slow: Duration) -> Self {
        Self { slow, unpushed: HashMap::new(), foreign_until: None }
    }

    /// Records that a check found an assignment first.
    pub(super) fn found(&mut self, id: TicketId) {
        self.unpushed.entry(id).or_insert_with(Instant::now);
    }

    /// Records that an assignment was pushed.
    pub(super) fn pushed(&mut self, id: &str) {
        if !self.unpushed.is_empty() {
            self.unpushed.retain(|unpushed, _| unpushed.as_str() != id);
        }
    }

    /// Returns how long to wait until the next check of `watched` tickets.
    pub(super) fn next(&mut self, watched: usize, has_foreign_engine: bool) -> Duration {
        let now = Instant::now();
        let before = self.unpushed.len();
        self.unpushed.retain(|_, found| now.duration_since(*found) < PUSH_MAY_TAKE);
        if self.unpushed.len() < before || has_foreign_engine {
            self.foreign_until = Some(now + MEMORY);
        }
        let is_foreign = self.foreign_until.is_some_and(|until| now < until);
        if !is_foreign && self.unpushed.is_empty() {
            return self.slow;
        }
        let affordable = Duration::from_secs(1) * u32::try_from(watched).unwrap_or(u32::MAX) / MAX_READS;
        FAST.max(affordable).min(self.slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_secs(5);

    fn id() -> TicketId {
        TicketId::parse("t1").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn assignment_that_nobody_pushes_makes_the_pace_fast_for_an_hour() {
        let mut pace = Pace::new(SLOW);
        assert_eq!(pace.next(10, false), SLOW);
        pace.found(id());
        assert_eq!(pace.next(10, false), FAST, "until the push is overdue");
        tokio::time::advance(PUSH_MAY_TAKE).await;
        assert_eq!(pace.next(10, false), FAST);
        tokio::time::advance(MEMORY - Duration::from_secs(1)).await;
        assert_eq!(pace.next(10, false), FAST);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(pace.next(10, false), SLOW);
    }

    #[tokio::test(start_paused = true)]
    async fn late_push_of_our_own_engine_keeps_the_pace_slow() {
        let mut pace = Pace::new(SLOW);
        pace.found(id());
        tokio::time::advance(PUSH_MAY_TAKE / 2).await;
        pace.pushed("t1");
        assert_eq!(pace.next(10, false), SLOW);
        tokio::time::advance(PUSH_MAY_TAKE).await;
        assert_eq!(pace.next(10, false), SLOW);
    }

    #[tokio::test(start_paused = true)]
    async fn cost_of_the_fast_pace_is_bounded() {
        let mut pace = Pace::new(SLOW);
        assert_eq!(pace.next(0, true), FAST);
        assert_eq!(pace.next(100_000, true), Duration::from_secs(2));
        assert_eq!(pace.next(10_000_000, true), SLOW);
    }
}

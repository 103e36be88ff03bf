//! Counts of decisions for operators: by rule, since the start and in the recent past, and the keys that are refused most.
//!
//! An allowed request costs nothing here: the counts are those of the metrics, compared with earlier ones.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::Clock;
use tokio::time::Instant;

use crate::refused_keys::RefusedKeys;
use crate::{Check, RefusedKey, Rule};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// The least time between two records of the counts.
const INTERVAL: Duration = Duration::from_secs(5);

/// Numbers of decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub allowed: u64,
    pub refused: u64,
}

/// The decisions of every rule.
pub(crate) type AllCounts = Vec<(Rule, Counts)>;

/// The decisions of one rule in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCounts {
    pub rule: Rule,
    pub since_start: Counts,
    /// In the last minute, or up to a sweep longer.
    pub last_minute: Counts,
    /// In the last hour, or up to a sweep longer.
    pub last_hour: Counts,
}

impl RuleCounts {
    /// Returns the counts of a rule without decisions.
    pub fn none(rule: Rule) -> Self {
        let none = Counts::default();
        Self { rule, since_start: none, last_minute: none, last_hour: none }
    }
}

#[derive(Debug)]
pub(crate) struct Tally {
    clock: Clock,
    /// The counts at earlier times, the oldest first. Covers a little more than an hour.
    history: Mutex<VecDeque<(Instant, AllCounts)>>,
    refused: Mutex<RefusedKeys>,
}

impl Tally {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, history: Mutex::default(), refused: Mutex::default() }
    }

    /// Counts a refusal for its key.
    pub(crate) fn refused(&self, check: &Check<'_>) {
        let now = self.clock.now();
        lock(&self.refused).record(check, now);
    }

    /// Records the counts of this moment, and forgets old records and keys.
    pub(crate) fn sweep(&self, counts: AllCounts) {
        lock(&self.refused).sweep(self.clock.now());
        let mut history = lock(&self.history);
        if history.back().is_some_and(|(at, _)| at.elapsed() < INTERVAL) {
            return;
        }
        history.push_back((Instant::now(), counts));
        // The last record that is older than an hour stays: the last hour is counted from it.
        while history.get(1).is_some_and(|(at, _)| at.elapsed() >= HOUR) {
            history.pop_front();
        }
    }

    /// Compares the counts of this moment with earlier ones.
    pub(crate) fn counts(&self, counts: AllCounts) -> Vec<RuleCounts> {
        let history = lock(&self.history);
        let before = |age: Duration| {
            history.iter().rev().find(|(at, _)| at.elapsed() >= age).map(|(_, counts)| counts)
        };
        let (minute, hour) = (before(MINUTE), before(HOUR));
        let since = |rule: Rule, now: Counts, before: Option<&AllCounts>| {
            let before = before.and_then(|counts| counts.iter().find(|(known, _)| *known == rule));
            let before = before.map_or_else(Counts::default, |(_, counts)| *counts);
            Counts {
                allowed: now.allowed.saturating_sub(before.allowed),
                refused: now.refused.saturating_sub(before.refused),
            }
        };
        let mut counts: Vec<RuleCounts> = counts
            .into_iter()
            .map(|(rule, now)| RuleCounts {
                rule,
                since_start: now,
                last_minute: since(rule, now, minute),
                last_hour: since(rule, now, hour),
            })
            .collect();
        counts.sort_unstable_by_key(|counts| counts.rule);
        counts
    }

    pub(crate) fn most_refused(&self, limit: usize) -> Vec<RefusedKey> {
        lock(&self.refused).worst(limit)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::KeyKind;

    const RULE: Rule = Rule { policy: "read", kind: KeyKind::User };

    fn counts(allowed: u64, refused: u64) -> Counts {
        Counts { allowed, refused }
    }

    #[tokio::test(start_paused = true)]
    async fn recent_counts_are_the_rise_since_an_earlier_record() {
        let tally = Tally::new(Clock::system());
        let of = |now: Counts| {
            let all = tally.counts(vec![(RULE, now)]);
            (all[0].last_minute, all[0].last_hour, all[0].since_start)
        };
        assert_eq!(of(counts(5, 1)), (counts(5, 1), counts(5, 1), counts(5, 1)), "all of it is recent");
        // Ten allowed and one refused in each ten seconds, for two hours.
        for tick in 0..720 {
            tally.sweep(vec![(RULE, counts(tick * 10, tick))]);
            advance(Duration::from_secs(10)).await;
        }
        assert_eq!(of(counts(7_200, 720)), (counts(60, 6), counts(3_600, 360), counts(7_200, 720)));
        assert!(lock(&tally.history).len() <= 362, "{}", lock(&tally.history).len());
        // A rule that is new counts from 0.
        let other = Rule { policy: "write", ..RULE };
        assert_eq!(tally.counts(vec![(other, counts(1, 1))])[0].last_minute, counts(1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn frequent_sweeps_do_not_shorten_the_history() {
        let tally = Tally::new(Clock::system());
        for _ in 0..100 {
            tally.sweep(Vec::new());
            advance(Duration::from_millis(100)).await;
        }
        assert_eq!(lock(&tally.history).len(), 2);
    }
}

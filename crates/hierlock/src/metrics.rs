//! What is counted.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::{Error, Level};

/// The metrics of a [`Locks`](crate::Locks). Clones are the same.
#[derive(Clone)]
pub struct Metrics(Arc<Instruments>);

struct Instruments {
    /// By level and outcome, so that no label is looked up while locking.
    acquire: [[Histogram; Outcome::ALL.len()]; Level::ALL.len()],
    acquire_family: Family<AcquireLabels, Histogram, fn() -> Histogram>,
    hold: Histogram,
    waiters: Gauge,
    holds: Gauge,
}

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Outcome {
    Granted,
    Timeout,
    /// All connections were taken.
    NoPlace,
    Deadlock,
    /// The caller left before it ended.
    Abandoned,
    /// Any other error.
    Failed,
}

impl Outcome {
    const ALL: [Self; 6] =
        [Self::Granted, Self::Timeout, Self::NoPlace, Self::Deadlock, Self::Abandoned, Self::Failed];

    const fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Timeout => "timeout",
            Self::NoPlace => "no_place",
            Self::Deadlock => "deadlock",
            Self::Abandoned => "abandoned",
            Self::Failed => "failed",
        }
    }

    pub(crate) const fn of<T>(done: &Result<T, Error>) -> Self {
        match done {
            Ok(_) => Self::Granted,
            Err(Error::Timeout(_)) => Self::Timeout,
            Err(Error::NoPlace { .. }) => Self::NoPlace,
            Err(Error::Deadlock(_)) => Self::Deadlock,
            Err(_) => Self::Failed,
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AcquireLabels {
    level: &'static str,
    outcome: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        // 50 us to 26 s.
        let family: Family<AcquireLabels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_05, 2.0, 20)));
        let cell = |level: Level, outcome: Outcome| {
            family.get_or_create(&AcquireLabels { level: level.word(), outcome: outcome.word() }).clone()
        };
        Self(Arc::new(Instruments {
            acquire: Level::ALL.map(|level| Outcome::ALL.map(|outcome| cell(level, outcome))),
            acquire_family: family,
            hold: Histogram::new(exponential_buckets(0.000_1, 4.0, 12)),
            waiters: Gauge::default(),
            holds: Gauge::default(),
        }))
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let this = &self.0;
        let registry = registry.sub_registry_with_prefix("hierlock");
        registry.register_with_unit(
            "acquire_duration",
            "Time to acquire a lock, by the level of the deepest target and by how it ended",
            Unit::Seconds,
            this.acquire_family.clone(),
        );
        registry.register_with_unit(
            "hold_duration",
            "Time from the acquisition of a lock to its release",
            Unit::Seconds,
            this.hold.clone(),
        );
        registry.register("waiters", "Acquisitions under way", this.waiters.clone());
        registry.register("holds", "Locks that are held", this.holds.clone());
    }

    pub(crate) fn acquired(&self, level: Level, outcome: Outcome, took: Duration) {
        self.0.acquire[level as usize][outcome as usize].observe(took.as_secs_f64());
    }

    pub(crate) fn waiter(&self) -> Waiter {
        self.0.waiters.inc();
        Waiter(self.clone())
    }

    pub(crate) fn hold(&self) -> Hold {
        self.0.holds.inc();
        Hold { since: Instant::now(), metrics: self.clone() }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// An acquisition, which counts while it lives.
#[derive(Debug)]
pub(crate) struct Waiter(Metrics);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.0.waiters.dec();
    }
}

/// A lock that is held, which counts while it lives, and for how long it lives.
#[derive(Debug)]
pub(crate) struct Hold {
    since: Instant,
    metrics: Metrics,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.metrics.0.holds.dec();
        self.metrics.0.hold.observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_outcome() {
        let outcome = |error| Outcome::of(&Err::<(), Error>(error));
        assert_eq!(Outcome::of(&Ok::<(), Error>(())), Outcome::Granted);
        assert_eq!(outcome(Error::Timeout(Duration::ZERO)), Outcome::Timeout);
        assert_eq!(outcome(Error::NoPlace { places: 1, after: Duration::ZERO }), Outcome::NoPlace);
        assert_eq!(outcome(Error::Deadlock(sqlx::Error::PoolClosed)), Outcome::Deadlock);
        assert_eq!(outcome(Error::Unreachable(sqlx::Error::PoolClosed)), Outcome::Failed);
        assert!(
            (0..).zip(Outcome::ALL).all(|(number, outcome)| number == outcome as usize),
            "as they are kept"
        );
    }
}

//! Metrics of the lock manager.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::{Error, Level};

/// The metrics of a [`LockManager`](crate::LockManager). Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Metrics(Arc<Instruments>);

struct Instruments {
    /// Indexed by level and outcome, so that locking needs no label look-up.
    acquire: [[Histogram; AcquireOutcome::ALL.len()]; Level::ALL.len()],
    acquire_family: Family<AcquireLabels, Histogram, fn() -> Histogram>,
    hold: Histogram,
    waiters: Gauge,
    holds: Gauge,
}

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum AcquireOutcome {
    Granted,
    Timeout,
    /// All connections were in use.
    NoConnection,
    Deadlock,
    /// The caller dropped the future.
    Abandoned,
    /// Any other error.
    Failed,
}

impl AcquireOutcome {
    const ALL: [Self; 6] =
        [Self::Granted, Self::Timeout, Self::NoConnection, Self::Deadlock, Self::Abandoned, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Timeout => "timeout",
            Self::NoConnection => "no_connection",
            Self::Deadlock => "deadlock",
            Self::Abandoned => "abandoned",
            Self::Failed => "failed",
        }
    }

    pub(crate) const fn from_result<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Granted,
            Err(Error::Timeout(_)) => Self::Timeout,
            Err(Error::NoConnection { .. }) => Self::NoConnection,
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
        let cell = |level: Level, outcome: AcquireOutcome| {
            family.get_or_create(&AcquireLabels { level: level.as_str(), outcome: outcome.as_str() }).clone()
        };
        Self(Arc::new(Instruments {
            acquire: Level::ALL.map(|level| AcquireOutcome::ALL.map(|outcome| cell(level, outcome))),
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
            "Time to acquire a lock, by the level of the deepest target and by outcome",
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

    pub(crate) fn observe_acquire(&self, level: Level, outcome: AcquireOutcome, took: Duration) {
        self.0.acquire[level as usize][outcome as usize].observe(took.as_secs_f64());
    }

    pub(crate) fn waiter(&self) -> WaiterGuard {
        self.0.waiters.inc();
        WaiterGuard(self.clone())
    }

    pub(crate) fn hold(&self) -> HoldTimer {
        self.0.holds.inc();
        HoldTimer { since: Instant::now(), metrics: self.clone() }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// Counts an acquisition in progress until drop.
#[derive(Debug)]
pub(crate) struct WaiterGuard(Metrics);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.0.waiters.dec();
    }
}

/// Counts a held lock until drop, and records how long it was held.
#[derive(Debug)]
pub(crate) struct HoldTimer {
    since: Instant,
    metrics: Metrics,
}

impl Drop for HoldTimer {
    fn drop(&mut self) {
        self.metrics.0.holds.dec();
        self.metrics.0.hold.observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_map_to_outcomes() {
        let outcome = |error| AcquireOutcome::from_result(&Err::<(), Error>(error));
        assert_eq!(AcquireOutcome::from_result(&Ok::<(), Error>(())), AcquireOutcome::Granted);
        assert_eq!(outcome(Error::Timeout(Duration::ZERO)), AcquireOutcome::Timeout);
        assert_eq!(
            outcome(Error::NoConnection { max_connections: 1, waited: Duration::ZERO }),
            AcquireOutcome::NoConnection
        );
        assert_eq!(outcome(Error::Deadlock(sqlx::Error::PoolClosed)), AcquireOutcome::Deadlock);
        assert_eq!(outcome(Error::Unreachable(sqlx::Error::PoolClosed)), AcquireOutcome::Failed);
        assert!(
            (0..).zip(AcquireOutcome::ALL).all(|(number, outcome)| number == outcome as usize),
            "the order of `ALL` is that of the histograms"
        );
    }
}

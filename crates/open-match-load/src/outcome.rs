//! What a run has shown.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::Failure;
use crate::checks::{Checks, Faults};
use crate::histogram::Histogram;

/// A generator that is later than this with one of a hundred players has not offered what it says.
const LATE: Duration = Duration::from_millis(100);
/// A thread that is as busy as this has nothing left to offer.
const BUSY: f64 = 0.95;

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Players who came in the time that was measured.
    pub started: u64,
    /// Those of them who were assigned, at whatever time.
    pub assigned: u64,
    /// Everybody who was assigned, warming up included.
    pub everybody: u64,
    /// Players who got nothing, by reason, warming up included.
    pub failures: BTreeMap<String, u64>,
    /// Assignments that arrived in the time that was measured, per second.
    pub rate: f64,
    /// From the time when a player should come until the assignment arrived.
    pub latency: Histogram,
    /// By how much players came later than they should.
    pub lag: Histogram,
    /// Which share of one processor the generator itself has used.
    pub busy: f64,
    /// What was wrong with the assignments, warming up included.
    pub faults: Faults,
}

impl Outcome {
    /// Whether everybody was assigned, once, together with one other.
    pub fn flawless(&self) -> bool {
        self.assigned == self.started && self.failures.is_empty() && self.faults.none()
    }

    /// Reasons to doubt the numbers: the generator, not the server, was too slow.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let lag = self.lag.quantile(0.99);
        if lag > LATE {
            complaints.push(format!("the generator was late: {:.0} ms at p99", lag.as_secs_f64() * 1e3));
        }
        if self.busy > BUSY {
            complaints.push(format!("the generator was busy: {:.0} % of a processor", self.busy * 100.0));
        }
        complaints
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milli = |q| self.latency.quantile(q).as_secs_f64() * 1e3;
        write!(
            f,
            "{} of {} assigned, {:.0}/s, p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms, generator {:.0} % busy",
            self.assigned,
            self.started,
            self.rate,
            milli(0.5),
            milli(0.99),
            self.latency.max().as_secs_f64() * 1e3,
            self.busy * 100.0
        )?;
        for (failure, count) in &self.failures {
            write!(f, "; {count} x {failure}")?;
        }
        if !self.faults.none() {
            let Faults { alone, crowded, changed, repeated } = self.faults;
            write!(
                f,
                "; WRONG: {alone} alone, {crowded} crowded, {changed} changed, {repeated} ids repeated"
            )?;
        }
        for complaint in self.complaints() {
            write!(f, "; {complaint}")?;
        }
        Ok(())
    }
}

/// Collects what players tell.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) outcome: Outcome,
    pub(crate) checks: Checks,
    /// Assignments that arrived while it was measured.
    pub(crate) arrived: u64,
}

impl Recorder {
    pub(crate) fn failed(&mut self, failure: &Failure) {
        *self.outcome.failures.entry(failure.to_string()).or_default() += 1;
    }

    pub(crate) fn finish(self, measured: Duration, busy: Duration) -> Outcome {
        let seconds = measured.as_secs_f64().max(f64::MIN_POSITIVE);
        let mut faults = self.checks.faults();
        if !self.outcome.failures.is_empty() {
            faults.alone = 0;
        }
        Outcome {
            rate: self.arrived as f64 / seconds,
            busy: busy.as_secs_f64() / seconds,
            faults,
            ..self.outcome
        }
    }
}

/// The processor time that this thread has used.
pub(crate) fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

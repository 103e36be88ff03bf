//! The report of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::Failure;
use crate::checks::{Checks, Faults};
use crate::histogram::Histogram;

/// If one percent of the players start later than this, the generator did not offer the configured load.
const LATE: Duration = Duration::from_millis(100);
/// Above this share of one processor the generator's thread is saturated.
const BUSY: f64 = 0.95;

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Players who started during the measurement.
    pub started: u64,
    /// Those of them who were assigned, during or after the measurement.
    pub assigned: u64,
    /// All players who were assigned, including the warm-up.
    pub all_assigned: u64,
    /// Players who got no assignment, by reason, including the warm-up.
    pub failures: BTreeMap<String, u64>,
    /// Assignments per second that arrived during the measurement.
    pub rate: f64,
    /// The time from a player's scheduled start to its assignment.
    pub latency: Histogram,
    /// The delay between a player's scheduled and actual start.
    pub lag: Histogram,
    /// The share of one processor that the generator used.
    pub busy: f64,
    /// Errors in the assignments, including the warm-up.
    pub faults: Faults,
}

impl LoadReport {
    /// Returns whether every player was assigned exactly once, together with one opponent.
    pub fn is_flawless(&self) -> bool {
        self.assigned == self.started && self.failures.is_empty() && self.faults.is_empty()
    }

    /// Returns reasons why the generator, not the server, limited the results.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let lag = self.lag.quantile(0.99);
        if lag > LATE {
            warnings.push(format!("the generator was late: {:.0} ms at p99", lag.as_secs_f64() * 1e3));
        }
        if self.busy > BUSY {
            warnings.push(format!("the generator was busy: {:.0} % of a processor", self.busy * 100.0));
        }
        warnings
    }
}

impl fmt::Display for LoadReport {
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
        if !self.faults.is_empty() {
            let Faults { alone, crowded, changed, repeated } = self.faults;
            write!(
                f,
                "; WRONG: {alone} alone, {crowded} crowded, {changed} changed, {repeated} ids repeated"
            )?;
        }
        for warning in self.warnings() {
            write!(f, "; {warning}")?;
        }
        Ok(())
    }
}

/// Collects the results of the players.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) report: LoadReport,
    pub(crate) checks: Checks,
    /// Assignments that arrived during the measurement.
    pub(crate) arrived: u64,
}

impl Recorder {
    pub(crate) fn failed(&mut self, failure: &Failure) {
        *self.report.failures.entry(failure.to_string()).or_default() += 1;
    }

    pub(crate) fn finish(self, measured: Duration, busy: Duration) -> LoadReport {
        let seconds = measured.as_secs_f64().max(f64::MIN_POSITIVE);
        let mut faults = self.checks.faults();
        if !self.report.failures.is_empty() {
            faults.alone = 0;
        }
        LoadReport {
            rate: self.arrived as f64 / seconds,
            busy: busy.as_secs_f64() / seconds,
            faults,
            ..self.report
        }
    }
}

/// Returns the processor time that this thread has used.
pub(crate) fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

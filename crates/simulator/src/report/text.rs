//! The report as text.

use std::fmt::{self, Write as _};

use base::counted;

use super::{Report, millis};
use crate::checks::Promise;

/// How many violations of a promise are listed. The JSON report has all of them.
const LISTED: usize = 10;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.figures.counts;
        writeln!(
            f,
            "{}: {} in {:.1} s, seed {}, run {}; players sign in with {}\n",
            self.name,
            counted(self.history.players.len() as u64, "player"),
            self.took.as_secs_f64(),
            self.seed,
            self.run,
            self.sign_in,
        )?;
        let mut rows = self.outcomes();
        rows.extend([
            ("notifications on streams", counts.notified),
            ("reconnects", counts.reconnects),
            ("silent streams given up", counts.silences),
            ("requests", counts.requests),
            ("retries", counts.retries),
            ("renewed access tokens", counts.renewals),
        ]);
        for (name, count) in rows {
            writeln!(f, "  {name:<32} {count:>8}")?;
        }
        writeln!(f)?;
        writeln!(f, "  {:<16} {:>8} {:>9} {:>9} {:>9}", "request", "count", "p50 ms", "p99 ms", "max ms")?;
        for (name, call) in &self.figures.calls {
            let at = |quantile| millis(call.latency.value_at_quantile(quantile));
            let (count, max) = (call.latency.len(), millis(call.latency.max()));
            writeln!(f, "  {name:<16} {count:>8} {:>9.1} {:>9.1} {max:>9.1}", at(0.5), at(0.99))?;
        }
        writeln!(f, "  of which the simulator held requests back for a p99 of {:.1} ms", self.held_back())?;
        writeln!(f)?;
        for (at, what) in &self.figures.marks {
            writeln!(f, "  after {at:>5.1} s  {what}")?;
        }
        writeln!(f)?;
        for promise in Promise::ALL {
            let found: Vec<_> = self.violations_of(promise).collect();
            if found.is_empty() {
                writeln!(f, "  holds   {promise}")?;
                continue;
            }
            writeln!(f, "  BROKEN  {promise}: {}", counted(found.len() as u64, "violation"))?;
            for violation in found.iter().take(LISTED) {
                writeln!(f, "          - {}", violation.what)?;
            }
            if found.len() > LISTED {
                writeln!(f, "          … and {} more: --json lists all", found.len() - LISTED)?;
            }
        }
        f.write_char('\n')?;
        if self.is_interrupted() {
            f.write_str(
                "The run was stopped: players who had not finished are checked as far as they got.\n",
            )?;
        }
        if self.is_clean() {
            write!(f, "All checks passed.")
        } else {
            write!(f, "{} of {} promises are broken.", self.broken(), Promise::ALL.len())
        }
    }
}

impl Report {
    /// Returns how many promises are broken.
    pub(super) fn broken(&self) -> usize {
        Promise::ALL.into_iter().filter(|promise| self.violations_of(*promise).next().is_some()).count()
    }
}

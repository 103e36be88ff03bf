//! The size of the run: short for CI, full for `cargo xtask soak nats`.

use std::fmt;
use std::time::Duration;

use super::fault::Fault;

/// The variable that is `full` for the full run.
const FAULTS: &str = "CLUSTER_FAULTS";
/// The variables that override the rates, for machines that are too slow for those of the full run.
const RATES: [&str; 2] = ["CLUSTER_GRANTS", "CLUSTER_MATCHES"];

/// The load and the faults.
pub(crate) struct Size {
    /// Entitlement grants per second.
    pub(crate) grants: u32,
    /// Matches of two per second.
    pub(crate) matches: u32,
    /// How many customers receive the grants. Events of one key are published one after the other, so few customers would be a bottleneck.
    pub(crate) customers: usize,
    pub(crate) bus_timeout: &'static str,
    pub(crate) faults: Vec<Fault>,
}

impl Size {
    /// Reads the size from the environment.
    pub(crate) fn from_env() -> Self {
        let size = match std::env::var(FAULTS).as_deref() {
            Ok("full") => Self::full(),
            Ok(other) => panic!("{FAULTS}={other}: expected \"full\""),
            Err(_) => Self::short(),
        };
        let [grants, matches] = RATES.map(|name| std::env::var(name).ok().map(|rate| rate.parse().unwrap()));
        Self { grants: grants.unwrap_or(size.grants), matches: matches.unwrap_or(size.matches), ..size }
    }

    /// Returns a run with every kind of fault once. Each fault lasts several publish timeouts, so that events are published again while
    /// the stream still handles the first attempt.
    fn short() -> Self {
        let length = Duration::from_secs(8);
        Self {
            grants: 50,
            matches: 20,
            customers: 20,
            bus_timeout: "1s",
            faults: vec![
                Fault::LeaderKilled,
                Fault::FollowersPaused(length),
                Fault::AllKilled(length),
                Fault::AccountFull(length),
            ],
        }
    }

    fn full() -> Self {
        let length = Duration::from_secs(20);
        let mut faults = vec![Fault::LeaderKilled; 5];
        faults.extend([
            Fault::FollowersPaused(length),
            Fault::FollowersPaused(length),
            Fault::AllKilled(length),
            Fault::AccountFull(length),
        ]);
        Self { grants: 500, matches: 200, customers: 200, bus_timeout: "5s", faults }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grants, matches, faults, .. } = self;
        let count = faults.len();
        writeln!(f, "{grants} grants/s and {matches} matches/s through {count} faults")?;
        write!(
            f,
            "{:<28} {:>8} {:>8} {:>10} {:>8} {:>10} {:>8}",
            "fault", "lasted", "leader", "recovered", "allowed", "caught up", "given up"
        )
    }
}

//! How much of it: a short run for CI, a full one for `cargo xtask soak nats`.

use std::fmt;
use std::time::Duration;

use super::fault::Fault;

/// `full` for the full run.
const FAULTS: &str = "CLUSTER_FAULTS";
/// Other rates, for machines that cannot carry those of the full run.
const RATES: [&str; 2] = ["CLUSTER_GRANTS", "CLUSTER_MATCHES"];

/// Load and faults.
pub(crate) struct Size {
    /// Entitlement grants per second.
    pub(crate) grants: u32,
    /// Matches of two per second.
    pub(crate) matches: u32,
    /// Who the grants are for. Events of one key follow each other, so few customers would be a queue.
    pub(crate) customers: usize,
    pub(crate) bus_timeout: &'static str,
    pub(crate) faults: Vec<Fault>,
}

impl Size {
    /// What the environment asks for.
    pub(crate) fn asked() -> Self {
        let size = match std::env::var(FAULTS).as_deref() {
            Ok("full") => Self::full(),
            Ok(other) => panic!("{FAULTS}={other}: only \"full\" has a meaning"),
            Err(_) => Self::short(),
        };
        let [grants, matches] = RATES.map(|name| std::env::var(name).ok().map(|rate| rate.parse().unwrap()));
        Self { grants: grants.unwrap_or(size.grants), matches: matches.unwrap_or(size.matches), ..size }
    }

    /// Every kind of fault once. Each outlasts the timeout of publishing several times, so that events are published again while the
    /// stream still works on them.
    fn short() -> Self {
        let away = Duration::from_secs(8);
        Self {
            grants: 50,
            matches: 20,
            customers: 20,
            bus_timeout: "1s",
            faults: vec![
                Fault::LeaderKilled,
                Fault::FollowersPaused(away),
                Fault::AllKilled(away),
                Fault::AccountFull(away),
            ],
        }
    }

    fn full() -> Self {
        let away = Duration::from_secs(20);
        let mut faults = vec![Fault::LeaderKilled; 5];
        faults.extend([
            Fault::FollowersPaused(away),
            Fault::FollowersPaused(away),
            Fault::AllKilled(away),
            Fault::AccountFull(away),
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
            "fault", "lasted", "led in", "back after", "allowed", "caught up", "given up"
        )
    }
}

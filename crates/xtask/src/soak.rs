//! Long runs under load and faults. CI runs the same tests at a smaller size.

use anyhow::Result;
use clap::Subcommand;

use crate::install;
use crate::shell::{cargo, step};

#[derive(Debug, Subcommand)]
pub(crate) enum Soak {
    /// Run a fleet on three NATS servers through nine faults of the cluster; takes a few minutes
    Nats {
        /// Entitlement grants per second
        #[arg(long, default_value_t = 500)]
        grants: u32,
        /// Matches per second
        #[arg(long, default_value_t = 200)]
        matches: u32,
    },
    /// Run whole sales through the gateway: on a fleet with faults, and in one process on SQLite; takes some minutes
    Drops {
        /// Players who join
        #[arg(long, default_value_t = 20_000)]
        players: u32,
        /// Units on sale
        #[arg(long, default_value_t = 1_000)]
        units: u32,
    },
    /// Run two Directors on a fleet of three processes, and kill each of them; takes a minute
    OpenMatch {
        /// Tickets to match
        #[arg(long, default_value_t = 50_000)]
        tickets: u32,
    },
}

impl Soak {
    /// Runs the release build and prints a table of the faults.
    pub(crate) fn run(&self) -> Result<()> {
        install::run()?;
        // With `CI` a missing server is an error.
        match self {
            Self::Nats { grants, matches } => step(
                "soak nats",
                cargo(&["test", "--locked", "--release", "--workspace", "--test", "cluster"])
                    .env("CI", "true")
                    .env("CLUSTER_FAULTS", "full")
                    .env("CLUSTER_GRANTS", grants.to_string())
                    .env("CLUSTER_MATCHES", matches.to_string()),
            ),
            // One sale at a time, because each uses all cores.
            Self::Drops { players, units } => step(
                "soak drops",
                cargo(&[
                    "test",
                    "--locked",
                    "--release",
                    "--workspace",
                    "--test",
                    "sale",
                    "--",
                    "--test-threads=1",
                ])
                .env("CI", "true")
                .env("SALE_PLAYERS", players.to_string())
                .env("SALE_UNITS", units.to_string()),
            ),
            Self::OpenMatch { tickets } => step(
                "soak open-match",
                cargo(&["test", "--locked", "--release", "--package", "playhouse", "--test", "it", "--"])
                    .args(["directors_and_processes_killed", "--nocapture"])
                    .env("CI", "true")
                    .env("OPEN_MATCH_TICKETS", tickets.to_string()),
            ),
        }
    }
}

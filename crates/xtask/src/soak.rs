//! Long runs under load and faults, which are too much for every change: the same code as a test of CI, at its full size.

use anyhow::Result;
use clap::Subcommand;

use crate::install;
use crate::shell::{cargo, step};

#[derive(Debug, Subcommand)]
pub(crate) enum Soak {
    /// A fleet on three NATS servers, through nine faults of the cluster; a few minutes
    Nats {
        /// Entitlement grants per second
        #[arg(long, default_value_t = 500)]
        grants: u32,
        /// Matches per second
        #[arg(long, default_value_t = 200)]
        matches: u32,
    },
    /// A whole sale through the gateway: on a fleet through faults, and in one process on SQLite; some minutes
    Drops {
        /// Players who join
        #[arg(long, default_value_t = 20_000)]
        players: u32,
        /// Units on sale
        #[arg(long, default_value_t = 1_000)]
        units: u32,
    },
}

impl Soak {
    /// Runs it as it is shipped, and shows a table of the faults.
    pub(crate) fn run(&self) -> Result<()> {
        install::run()?;
        // In CI a server that is missing is an error, and so it is here.
        match self {
            Self::Nats { grants, matches } => step(
                "soak nats",
                cargo(&["test", "--locked", "--release", "--workspace", "--test", "cluster"])
                    .env("CI", "true")
                    .env("CLUSTER_FAULTS", "full")
                    .env("CLUSTER_GRANTS", grants.to_string())
                    .env("CLUSTER_MATCHES", matches.to_string()),
            ),
            // One sale at a time: both take all cores.
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
        }
    }
}

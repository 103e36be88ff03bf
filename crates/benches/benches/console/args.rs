//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Measure the console's screens on large tables, and its cost to a busy and to an idle server
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// How many rows the inboxes and the outbox have, each
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    pub(crate) rows: u64,
    /// How many tickets wait
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    pub(crate) tickets: usize,
    /// How often the throughput is measured, each time without and with consoles
    #[arg(long, default_value_t = 8, value_name = "COUNT")]
    pub(crate) rounds: usize,
    /// How long each measurement of the throughput takes; longer than the pause between two live updates under load
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    seconds: u64,
    /// How long the idle server is observed, each time
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    idle_seconds: u64,
    /// How many consoles are open
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    pub(crate) consoles: usize,
    /// The path of the product; the release build by default
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    pub(crate) fn program(&self) -> PathBuf {
        self.program.clone().unwrap_or_else(benches::product)
    }

    pub(crate) const fn seconds(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(crate) const fn idle_seconds(&self) -> Duration {
        Duration::from_secs(self.idle_seconds)
    }
}

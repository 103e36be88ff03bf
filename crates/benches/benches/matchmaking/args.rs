//! The command line.

use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Compare our matchmaking with minimatch
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Run only these parts
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// Do not run minimatch
    #[arg(long, conflicts_with = "peer_only")]
    pub(crate) ours_only: bool,
    /// Do not run Playhouse
    #[arg(long)]
    pub(crate) peer_only: bool,
    /// Measure for half the time and only once; less reliable
    #[arg(long)]
    quick: bool,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Sustained,
    Latency,
    Commands,
    Idle,
    Drain,
    Reconnect,
}

impl Args {
    pub(crate) fn runs(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns how often a noisy figure is measured. The median counts.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// Returns the duration of a measurement that takes `whole` seconds by default.
    pub(crate) fn seconds(&self, whole: u64) -> Duration {
        Duration::from_secs(whole) / if self.quick { 2 } else { 1 }
    }
}

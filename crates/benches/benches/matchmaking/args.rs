//! What to run.

use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Our matchmaking against minimatch
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// Leave minimatch out
    #[arg(long, conflicts_with = "peer_only")]
    pub(crate) ours_only: bool,
    /// Leave ours out
    #[arg(long)]
    pub(crate) peer_only: bool,
    /// Half the time, half the trust
    #[arg(long)]
    quick: bool,
    /// Said by cargo
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

    /// How often a figure that is noisy is taken; the median counts.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// How long something is measured.
    pub(crate) fn seconds(&self, whole: u64) -> Duration {
        Duration::from_secs(whole) / if self.quick { 2 } else { 1 }
    }
}

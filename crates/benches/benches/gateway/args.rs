//! What to run.

use std::path::PathBuf;

use clap::Parser;

/// The gateway against an empty axum handler, and what an idle stream costs
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Leave the requests out
    #[arg(long)]
    pub(crate) streams_only: bool,
    /// How many streams are open while nothing happens
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    pub(crate) streams: usize,
    /// The product; the one that is shipped unless another is named
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Said by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    pub(crate) fn program(&self) -> PathBuf {
        self.program.clone().unwrap_or_else(benches::product)
    }
}

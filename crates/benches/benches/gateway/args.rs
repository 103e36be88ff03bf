//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Compare the gateway with an empty axum handler, and measure idle streams
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Measure only the streams, not the requests
    #[arg(long)]
    pub(crate) streams_only: bool,
    /// How many idle streams to open
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    pub(crate) streams: usize,
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
}

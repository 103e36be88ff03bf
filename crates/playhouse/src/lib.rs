//! The program: commands, the reference configuration, and the wiring of the parts.

mod cli;
mod commands;
mod listeners;
mod role;
mod settings;
mod start;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

pub use cli::Cli;
pub use commands::Outcome;
pub use role::Role;
pub use settings::{REFERENCE, Settings};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // One crypto provider for everything that speaks TLS. Fails only when one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let outcome = commands::run(Cli::parse().command).unwrap_or_else(|error| {
        complain(&format!("error: {error:#}"));
        commands::Outcome::of_error(&error)
    });
    ExitCode::from(outcome as u8)
}

/// Writes an answer to stdout. A reader that went away is no reason to panic.
fn answer(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

//! The program: commands, the reference configuration, and the wiring of the parts.

mod asyncapi;
mod cli;
mod commands;
mod listeners;
mod openapi;
mod role;
mod settings;
mod start;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

pub use cli::Cli;
pub use commands::Outcome;
pub use role::{Role, Roles};
pub use settings::{REFERENCE, Settings};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // One crypto provider for everything that speaks TLS. Fails only when one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let outcome = commands::run(Cli::parse().command).unwrap_or_else(|error| {
        complain(&format!("error: {}", base::error::chain(error.as_ref())));
        commands::Outcome::of_error(&error)
    });
    ExitCode::from(outcome as u8)
}

/// Writes an answer to stdout. A reader that went away is fine, a disk that is full is not.
fn answer(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the answer")
        }
        _ => Ok(()),
    }
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

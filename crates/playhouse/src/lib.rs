//! The program: commands, the reference configuration, and the wiring of the parts.

mod asyncapi;
mod cli;
mod commands;
mod listeners;
mod openapi;
mod readiness;
mod services;
mod settings;
mod start;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

pub use cli::Cli;
pub use commands::Outcome;
pub use readiness::role_needs;
pub use service::{Role, Roles};
pub use services::{audited_service_routes, gateway_rows, operator_rows};
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

/// A document in `docs/` is what the program makes of it. INSTA_UPDATE=always writes it anew.
#[cfg(test)]
fn assert_in_docs(name: &str, document: &serde_json::Value) {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    let made = format!("{document:#}\n");
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(found == made, "docs/{name} is not up to date: run this again with INSTA_UPDATE=always");
}

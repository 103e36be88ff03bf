//! The program: its commands, the configuration reference, and the wiring of the services.

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
pub use commands::ExitStatus;
pub use readiness::role_needs;
pub use service::{Role, Roles};
pub use services::{
    audited_service_routes, console_actions, console_operations, console_screens, gateway_rows, operator_rows,
};
pub use settings::{REFERENCE, Settings};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // One crypto provider for all TLS connections. Fails only if one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let status = commands::run(Cli::parse().command).unwrap_or_else(|error| {
        print_error(&format!("error: {}", base::error::chain(error.as_ref())));
        commands::ExitStatus::from_error(&error)
    });
    ExitCode::from(status as u8)
}

/// Prints a line to stdout. Ignores a reader that closed the pipe; fails if the disk is full.
fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the output")
        }
        _ => Ok(()),
    }
}

fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Asserts that a document in `docs/reference/` is the one that the program generates. INSTA_UPDATE=always updates it.
#[cfg(test)]
fn assert_in_docs(name: &str, document: &serde_json::Value) {
    let path = format!("{}/../../docs/reference/{name}", env!("CARGO_MANIFEST_DIR"));
    let generated = format!("{document:#}\n");
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(&path, &generated).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(
        found == generated,
        "docs/reference/{name} is not up to date: run this again with INSTA_UPDATE=always"
    );
}

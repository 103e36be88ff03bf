//! The example game server as a program of its own.

#![expect(clippy::print_stdout, reason = "the output of the example")]

mod commands;

use clap::Parser;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    commands::run(commands::Arguments::parse()).await
}

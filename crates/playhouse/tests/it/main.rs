//! The program as its users meet it: real processes, real signals, real servers.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod allocation;
mod command_line;
mod configuration;
mod crashes;
mod dev;
mod drops;
mod fleet;
mod gateway;
mod letters;
mod locks;
mod logs;
mod matchmaking;
mod notifications;
mod open_match;
mod operators;
mod otlp;
mod outages;
mod players;
mod readiness;
mod services;
mod shop;
mod status;
mod tickets;
mod unfit_servers;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use testkit::{Program, Running};

const PATIENCE: Duration = Duration::from_secs(20);

const ANY_PORT: [&str; 8] =
    ["--gateway-port", "0", "--internal-port", "0", "--admin-port", "0", "--open-match-port", "0"];

/// Knows the operator of these tests. `playhouse dev` takes their token from the environment, and `playhouse serve` has its hash.
fn playhouse(args: &[&str]) -> Program {
    let program = stranger(args).env("PLAYHOUSE_OPERATOR_TOKEN", shop::OPERATOR_TOKEN);
    if args.first() == Some(&"serve") { shop::let_in(program) } else { program }
}

/// Knows no operator.
fn stranger(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// `playhouse dev` on free ports.
fn dev(args: &[&str]) -> Program {
    playhouse(&["dev", "--print-addresses"]).args(ANY_PORT).args(args.iter().copied())
}

/// Waits until the process says where it listens.
async fn addresses(running: &Running) -> HashMap<String, String> {
    let line = running.wait_for_line("\"admin\":", PATIENCE).await;
    serde_json::from_str(&line).unwrap()
}

async fn get(url: String) -> (u16, Value) {
    let response = reqwest::get(url).await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Runs to the end and returns the exit code and what was written to stdout and stderr.
async fn run(program: Program) -> (i32, String, String) {
    let running = program.start().unwrap();
    let status = running.wait(PATIENCE).await;
    (status.code().unwrap(), running.text(testkit::Stream::Stdout), running.text(testkit::Stream::Stderr))
}

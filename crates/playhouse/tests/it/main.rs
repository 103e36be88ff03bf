//! Tests of the shipped program: real processes, real signals, real servers.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod allocation;
mod command_line;
mod configuration;
mod crashes;
mod dead_letters;
mod dev;
mod drops;
mod fleet;
mod game_server;
mod gateway;
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
mod service_clients;
mod services;
mod shop;
mod status;
mod tickets;
mod trace;
mod try_it;
mod unsupported_servers;

use std::collections::HashMap;
use std::time::Duration;

use reqwest::RequestBuilder;
use reqwest::header::CONTENT_TYPE;
use serde_json::Value;
use testkit::{Program, RunningProgram};
use url::Url;

const PATIENCE: Duration = Duration::from_secs(20);

const ANY_PORT: [&str; 8] =
    ["--gateway-port", "0", "--service-api-port", "0", "--admin-port", "0", "--open-match-port", "0"];

/// Runs `playhouse` with the operator of these tests: `dev` takes the token from the environment, `serve` has its hash.
fn playhouse(args: &[&str]) -> Program {
    let program = playhouse_without_token(args).env("PLAYHOUSE_OPERATOR_TOKEN", shop::OPERATOR_TOKEN);
    if args.first() == Some(&"serve") { shop::with_credentials(program) } else { program }
}

/// Runs `playhouse` without an operator token.
fn playhouse_without_token(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// Runs `playhouse dev` on free ports.
fn dev(args: &[&str]) -> Program {
    playhouse(&["dev", "--print-addresses"]).args(ANY_PORT).args(args.iter().copied())
}

/// Adds the fields of a form to a request.
fn form(request: RequestBuilder, fields: &[(&str, impl AsRef<str>)]) -> RequestBuilder {
    let fields = fields.iter().map(|(name, value)| (*name, value.as_ref()));
    let body = Url::parse_with_params("http://form", fields).unwrap().query().unwrap_or_default().to_owned();
    request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
}

/// Waits until the process prints its addresses. Returns them by listener.
async fn addresses(running: &RunningProgram) -> HashMap<String, String> {
    let line = running.wait_for_line("\"admin\":", PATIENCE).await;
    serde_json::from_str(&line).unwrap()
}

async fn get(url: String) -> (u16, Value) {
    let response = reqwest::get(url).await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Runs a program to its end. Returns the exit code, stdout and stderr.
async fn run(program: Program) -> (i32, String, String) {
    let running = program.start().unwrap();
    let status = running.wait(PATIENCE).await;
    (
        status.code().unwrap(),
        running.text(testkit::OutputStream::Stdout),
        running.text(testkit::OutputStream::Stderr),
    )
}

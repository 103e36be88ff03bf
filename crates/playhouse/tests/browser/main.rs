//! The web pages in a real browser (Chromium), with the builtin issuer and with a third-party one.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod builtin;
mod console;
mod drops;
mod foreign;
mod inbox;
mod lobby;
mod looks;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use testkit::{Browser, Program, RunningProgram};

const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a program that prints its addresses. Returns it and the addresses.
async fn started(program: Program) -> (RunningProgram, HashMap<String, String>) {
    let running = program.start().unwrap();
    let line = running.wait_for_line("\"admin\":", PATIENCE).await;
    (running, serde_json::from_str(&line).unwrap())
}

fn playhouse(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// Returns `playhouse dev` on free ports.
fn dev(args: &[&str]) -> Program {
    let ports = ["--service-api-port", "0", "--admin-port", "0", "--open-match-port", "0"];
    playhouse(&["dev", "--ephemeral", "--print-addresses"]).args(ports).args(args.iter().copied())
}

/// Waits until the start page shows the name of the signed-in user.
async fn signed_in_as(browser: &Browser, name: &str) {
    browser.wait_for_text("#name", name, PATIENCE).await;
}

/// Calls the gateway from a script of the page. Returns the status and the body.
async fn fetch(browser: &Browser, method: &str, path: &str, headers: &str) -> (u64, Value) {
    let js = format!(
        "const response = await fetch({path:?}, {{ method: {method:?}, headers: {headers} }}); \
         const text = await response.text(); \
         return [response.status, text ? JSON.parse(text) : null];"
    );
    let response = browser.script_async(&js).await;
    (response[0].as_u64().unwrap(), response[1].clone())
}

//! The pages in a real browser, Chromium: signing in against the builtin issuer and against one that is not ours.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod builtin;
mod drops;
mod foreign;
mod inbox;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use testkit::{Browser, Program, Running};

const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a program that tells where it listens.
async fn started(program: Program) -> (Running, HashMap<String, String>) {
    let running = program.start().unwrap();
    let line = running.wait_for_line("\"admin\":", PATIENCE).await;
    (running, serde_json::from_str(&line).unwrap())
}

fn playhouse(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// `playhouse dev` on free ports.
fn dev(args: &[&str]) -> Program {
    let ports = ["--internal-port", "0", "--admin-port", "0", "--open-match-port", "0"];
    playhouse(&["dev", "--ephemeral", "--print-addresses"]).args(ports).args(args.iter().copied())
}

/// Waits until the first page knows who is signed in.
async fn signed_in_as(browser: &Browser, name: &str) {
    browser.wait_for_text("#name", name, PATIENCE).await;
}

/// What a script of the page gets from the gateway: the status and the answer.
async fn fetched(browser: &Browser, method: &str, path: &str, headers: &str) -> (u64, Value) {
    let js = format!(
        "const answer = await fetch({path:?}, {{ method: {method:?}, headers: {headers} }}); \
         const text = await answer.text(); \
         return [answer.status, text ? JSON.parse(text) : null];"
    );
    let answer = browser.script_async(&js).await;
    (answer[0].as_u64().unwrap(), answer[1].clone())
}

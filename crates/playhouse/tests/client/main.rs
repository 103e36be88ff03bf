//! The JavaScript client on the shipped program: its package, its guide, and its promises in Node and in Chromium.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod guide;
mod host;
mod lost_responses;
mod package;
mod promises;
mod sign_in;
mod tabs;
mod world;

use std::path::PathBuf;
use std::time::Duration;

use testkit::{OutputStream, Program};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the folder of the package.
fn package_folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/js"))
}

/// Runs a program to its end and returns its output. Asserts that it succeeds.
async fn run(program: Program) -> String {
    let running = program.start().unwrap();
    let status = running.wait(PATIENCE * 3).await;
    let [out, errors] = [OutputStream::Stdout, OutputStream::Stderr].map(|stream| running.text(stream));
    assert!(status.success(), "{status}\n{out}\n{errors}");
    out
}

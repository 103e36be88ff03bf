//! A fleet under load on a NATS cluster of three servers that are killed, paused, without a quorum, or full.
//!
//! A separate test binary: it measures how soon the fleet is back at the offered rate, and concurrent tests would disturb that.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod fault;
mod fleet;
mod players;
#[expect(dead_code, reason = "the rest is used by other tests")]
#[path = "../it/shop.rs"]
mod shop;
mod size;
mod stored;
mod timeline;

use std::io::Write;
use std::time::Duration;

use serde_json::Value;
use testkit::{Program, need};

use fleet::Fleet;
use size::Size;

const PATIENCE: Duration = Duration::from_secs(20);

fn playhouse(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// Prints a line even if the test passes: the test runner captures `println!`.
fn show(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_nats_cluster_lose_double_and_reorder_nothing() {
    let size = Size::from_env();
    let mut fleet = need!(Fleet::start(&size).await);
    show(&size.to_string());
    let mut failed = Vec::new();
    for fault in &size.faults {
        let report = fleet.endure(*fault).await;
        show(&report.to_string());
        if !report.is_good() {
            failed.push(report);
        }
    }
    show(&fleet.finish().await.to_string());
    assert!(failed.is_empty(), "too slow, or events were given up: {failed:#?}");
}

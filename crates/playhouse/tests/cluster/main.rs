//! A fleet on a NATS cluster of three, whose servers die, stand still, lose their quorum and are full, under load.
//!
//! A binary of its own: it measures how soon the rate is back, which other tests beside it would disturb.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod fault;
mod players;
mod scene;
#[expect(dead_code, reason = "other tests need the rest")]
#[path = "../it/shop.rs"]
mod shop;
mod size;
mod stored;
mod timeline;

use std::io::Write;
use std::time::Duration;

use serde_json::Value;
use testkit::{Program, need};

use scene::Scene;
use size::Size;

const PATIENCE: Duration = Duration::from_secs(20);

fn playhouse(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// Shows a line also if the test passes, whose prints the test runner swallows.
fn show(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_nats_cluster_lose_double_and_reorder_nothing() {
    let size = Size::asked();
    let mut scene = need!(Scene::start(&size).await);
    show(&size.to_string());
    let mut bad = Vec::new();
    for fault in &size.faults {
        let report = scene.suffer(*fault).await;
        show(&report.to_string());
        if !report.is_good() {
            bad.push(report);
        }
    }
    show(&scene.finish().await.to_string());
    assert!(bad.is_empty(), "not back in time, or given up: {bad:#?}");
}

//! The current speed of the machine: plain SETs, measured by `redis-benchmark`.
//!
//! The speed of machines differs, also over time. This figure makes different runs comparable.

use std::process::Stdio;

use testkit::Redis;
use tokio::process::Command;

use crate::results::{Results, Row};
use crate::system::SystemKind;

/// Measures once, before anything else runs.
pub(crate) async fn sets(results: &mut Results) {
    let redis = Redis::private().await.unwrap();
    let port = redis.addr().port().to_string();
    let arguments = ["-p", &port, "-t", "set", "-n", "300000", "-c", "50", "--csv"];
    let output = Command::new("redis-benchmark").args(arguments).stderr(Stdio::null()).output().await;
    let Ok(output) = output else {
        return results.print(SystemKind::Playhouse, "redis-benchmark is not installed");
    };
    // "test","rps",… and then "SET","113250.00",…
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("\"SET\""));
    let rate = line.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
    if let Some(rate) = rate {
        results.add(Row::RawSets, SystemKind::Playhouse, rate);
    }
}

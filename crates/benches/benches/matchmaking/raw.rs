//! How fast this machine is just now, by what everybody knows: plain SETs as Redis measures them itself.
//!
//! Machines differ, and one machine differs from hour to hour. Figures of different runs can be compared by this one.

use std::process::Stdio;

use testkit::Redis;
use tokio::process::Command;

use crate::results::{Results, Row};
use crate::system::Kind;

/// Measures once, before anything else runs.
pub(crate) async fn sets(results: &mut Results) {
    let redis = Redis::private().await.unwrap();
    let port = redis.addr().port().to_string();
    let arguments = ["-p", &port, "-t", "set", "-n", "300000", "-c", "50", "--csv"];
    let output = Command::new("redis-benchmark").args(arguments).stderr(Stdio::null()).output().await;
    let Ok(output) = output else { return results.say(Kind::Playhouse, "there is no redis-benchmark here") };
    // "test","rps",… and then "SET","113250.00",…
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("\"SET\""));
    let rate = line.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
    if let Some(rate) = rate {
        results.add(Row::RawSets, Kind::Playhouse, rate);
    }
}

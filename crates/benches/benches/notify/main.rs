//! How long it takes from the commit of a grant to the player's screen, and what players who wait cost.
//!
//! `cargo xtask bench notify` runs all of it: the product as it is shipped, one process with all roles on MariaDB (commits are synced),
//! Redis and NATS. Beside it the same hops by bare clients, one after the other in the same run: commit a row, publish and be
//! acknowledged, receive, commit a row, write to a socket. Arguments choose parts: `latency`, `load`, `intake`, `idle`.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has failed")]

mod bare;
mod http;
mod idle;
mod intake;
mod latency;
mod world;

use open_match_load::Histogram;
use testkit::bench::Report;

use world::World;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    // Cargo adds `--bench`.
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let mut report =
        Report::new("notify").columns(["what", "ours", "reference", "ratio", "goal", "reference is"]);
    let mut ratio = None;
    if is_wanted("latency") || is_wanted("load") {
        let world = World::start("").await;
        if is_wanted("latency") {
            ratio = Some(latency::idle(&world, &mut report).await);
        }
        if is_wanted("load") {
            latency::under_load(&world, &mut report).await;
        }
    }
    if is_wanted("intake") {
        intake::run(&mut report).await;
    }
    if is_wanted("idle") {
        idle::run(&mut report).await;
    }
    report.finish(ratio).unwrap();
}

/// Latencies, shown in milliseconds.
struct Times(Histogram);

impl Times {
    fn quantile(&self, q: f64) -> f64 {
        self.0.quantile(q).as_secs_f64() * 1e3
    }

    fn shown(&self) -> String {
        format!("{:.2} / {:.2}", self.quantile(0.5), self.quantile(0.99))
    }
}

//! The latency from the commit of a grant to the player's stream, and the cost of idle streams.
//!
//! `cargo xtask bench notify` runs everything: the release build, one process with all roles on MariaDB (with synced commits), Redis
//! and NATS. The reference in the same run does the same hops with bare clients: commit a row, publish with acknowledgement, receive,
//! commit a row, write to a socket. Arguments choose parts: `latency`, `load`, `intake`, `idle`.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod bare;
mod fleet;
mod http;
mod idle;
mod intake;
mod latency;

use open_match_load::Histogram;
use testkit::bench::Report;

use fleet::Fleet;

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
        let fleet = Fleet::start("").await;
        if is_wanted("latency") {
            ratio = Some(latency::idle(&fleet, &mut report).await);
        }
        if is_wanted("load") {
            latency::under_load(&fleet, &mut report).await;
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

//! The services of Open Match for Directors and match functions.
//!
//! `cargo xtask bench open-match` runs everything. `-- --tickets 10000 --large 50000 --matched 2000` is a quick run.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod connect;
mod directors;
mod queries;
mod subject;
mod tickets;

use clap::Parser;
use testkit::bench::Report;

/// Measure the services of Open Match
#[derive(Debug, Parser)]
struct Args {
    /// How many tickets wait while a pool of one in a hundred is queried
    #[arg(long, default_value_t = 100_000)]
    tickets: u32,
    /// How many tickets the index takes up whose memory is measured
    #[arg(long, default_value_t = 1_000_000)]
    large: u32,
    /// How many tickets a Director and the engine match, an even number
    #[arg(long, default_value_t = 20_000)]
    matched: u32,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut report =
            Report::new("open-match").columns(["", "p50 ms", "CPU ms", "Redis CPU ms", "Redis commands"]);
        let ratio = queries::measure(args.tickets, &mut report).await;
        queries::measure_memory(args.large, &mut report).await;
        directors::measure(args.matched, &mut report).await;
        report.finish(ratio).unwrap();
    });
}

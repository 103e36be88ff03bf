//! Our matchmaking compared with minimatch: the same load and the same kind of Redis, one after the other on the same machine.
//!
//! `cargo xtask bench matchmaking -- --only drain,idle --ours-only` runs a part of it. Each figure comes from a system that was
//! started for it, with an empty Redis that writes nothing to disk.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod args;
mod drain;
mod idle;
mod ours;
mod peer;
mod players;
mod raw;
mod results;
mod system;
mod usage;

use clap::Parser;

use args::{Args, Part};
use results::Results;
use system::TestBed;

fn main() {
    let args = Args::parse();
    open_match_load::run(compare(&args)).unwrap();
}

async fn compare(args: &Args) {
    let test_bed = TestBed::prepare(args).await;
    let mut results = Results::default();
    raw::sets(&mut results).await;
    let kinds = test_bed.kinds();
    if args.runs(Part::Sustained) {
        for &kind in &kinds {
            players::sustained(&test_bed, kind, args, &mut results).await;
        }
    }
    if args.runs(Part::Latency) {
        // In turns, so that other load on the machine affects all systems alike.
        for _ in 0..args.rounds() {
            for &kind in &kinds {
                players::latency(&test_bed, kind, args, &mut results).await;
            }
        }
    }
    for &kind in &kinds {
        if args.runs(Part::Commands) {
            players::commands(&test_bed, kind, &mut results).await;
        }
        if args.runs(Part::Idle) {
            idle::watchers(&test_bed, kind, args, &mut results).await;
        }
        if args.runs(Part::Drain) && kind.engine_differs() {
            drain::drain(&test_bed, kind, args, &mut results).await;
        }
        if args.runs(Part::Reconnect) {
            players::reconnect(&test_bed, kind, args, &mut results).await;
        }
    }
    results.report(&test_bed);
}

//! Our matchmaking against minimatch: the same players, the same Redis, one after the other on the same machine.
//!
//! `cargo xtask bench matchmaking -- --only drain,idle --ours-only` runs a part of it. Every figure comes from a system that was
//! started for it, with an empty Redis that writes nothing to disk.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has failed")]

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
use system::Stage;

fn main() {
    let args = Args::parse();
    open_match_load::run(compare(&args)).unwrap();
}

async fn compare(args: &Args) {
    let stage = Stage::prepare(args).await;
    let mut results = Results::default();
    raw::sets(&mut results).await;
    let kinds = stage.kinds();
    if args.runs(Part::Sustained) {
        for &kind in &kinds {
            players::sustained(&stage, kind, args, &mut results).await;
        }
    }
    if args.runs(Part::Latency) {
        // In turns, so that a busy minute of the machine disturbs all alike.
        for _ in 0..args.rounds() {
            for &kind in &kinds {
                players::latency(&stage, kind, args, &mut results).await;
            }
        }
    }
    for &kind in &kinds {
        if args.runs(Part::Commands) {
            players::commands(&stage, kind, &mut results).await;
        }
        if args.runs(Part::Idle) {
            idle::watchers(&stage, kind, args, &mut results).await;
        }
        if args.runs(Part::Drain) && kind.engine_differs() {
            drain::drain(&stage, kind, args, &mut results).await;
        }
        if args.runs(Part::Reconnect) {
            players::reconnect(&stage, kind, args, &mut results).await;
        }
    }
    results.report(&stage);
}

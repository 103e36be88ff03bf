//! The console on large tables: how long each screen takes, and what open consoles cost a busy and an idle server.
//!
//! `cargo xtask bench console` runs everything: the release build, one process with all roles on MariaDB (with synced commits), Redis
//! and NATS. The ratio is the throughput of players with 20 open consoles divided by the throughput without; both are measured in turns.
//! It fails if the median of a screen is 200 ms or more. `-- --rows 10000 --tickets 1000 --rounds 1` is a quick run.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod args;
mod consoles;
mod fill;
mod fleet;
mod http;
mod idle;
mod load;
mod screens;

use clap::Parser;
use testkit::bench::Report;

use args::Args;
use consoles::Consoles;
use fill::Filler;
use fleet::Fleet;
use load::Load;
use screens::Session;

/// How many players send requests. Many, so that the inbox of each grows little while this runs.
const PLAYERS: usize = 2_000;

fn main() {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(&args));
}

async fn run(args: &Args) {
    let mut report = Report::new("console").columns(["", "p50 ms", "p99 ms", ""]);
    let mut fleet = Fleet::start(args.program()).await;
    fleet.serve(false).await;
    let players = fleet.players(PLAYERS).await;
    let mut filler = Filler::new(&fleet, args.rows).await;
    filler.tables(players.len()).await;
    filler.tickets(&players, args.tickets).await;
    filler.actions(&players[0]).await;
    let off = idle::measure(&fleet, args.idle_seconds(), "console.enabled = false", &mut report).await;

    fleet.serve(true).await;
    Filler::new(&fleet, args.rows).await.samples().await;
    let unused =
        idle::measure(&fleet, args.idle_seconds(), "nobody has opened the console", &mut report).await;

    let session = Session::sign_in(&fleet).await;
    let mut screens = screens::find(&fleet, &session).await;
    let paths: Vec<String> =
        screens.iter().filter(|screen| screen.is_listed).map(|screen| screen.path.clone()).collect();
    let slow = screens::measure(&fleet, &session, &mut screens, &mut report).await;

    let mut sessions = Vec::with_capacity(args.consoles);
    for _ in 0..args.consoles {
        sessions.push(Session::sign_in(&fleet).await);
    }
    let ratio = Load::new(players).compare(&fleet, args, &sessions, &paths, &mut report).await;

    let closed = idle::measure(&fleet, args.idle_seconds(), "all consoles closed", &mut report).await;
    let consoles = Consoles::open(&fleet, &sessions, &paths).await;
    let what = format!("{} consoles open", args.consoles);
    let open = idle::measure(&fleet, args.idle_seconds(), &what, &mut report).await;
    drop(consoles);

    report.measure("idle_off_cpu_percent", off);
    report.measure("idle_unused_cpu_percent", unused);
    report.measure("idle_closed_cpu_percent", closed);
    report.measure("idle_open_cpu_percent", open);
    report.finish(ratio).unwrap();
    assert!(slow.is_empty(), "screens that take too long: {}", slow.join(", "));
}

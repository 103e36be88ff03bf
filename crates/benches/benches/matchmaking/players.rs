//! Load by players: rates, latencies and costs.

use std::time::Duration;

use open_match_load::{LoadReport, Options, closed_loop, open_loop};

use crate::args::Args;
use crate::results::{Results, Row};
use crate::system::{System, SystemKind, TestBed};
use crate::usage::{Cpu, Monitor};

const PLAYERS: usize = 2000;
const RATE: f64 = 2000.0;
/// The search for the sustained rate starts at this multiple of the closed loop's rate and moves in steps of [`STEP`].
const FIRST_SHARE: f64 = 1.1;
const STEP: f64 = 0.1;
const MAX_STEPS: u32 = 8;
const MAX_P99: Duration = Duration::from_secs(1);
const RECONNECTING: usize = 200;

/// Measures the assigned tickets per second: in a closed loop, and then the highest rate that is sustained.
pub(crate) async fn sustained(test_bed: &TestBed, kind: SystemKind, args: &Args, results: &mut Results) {
    let system = test_bed.start(kind, 1).await;
    let options = Options::default();
    let run = closed_loop(&system.target, &options, PLAYERS, Duration::from_secs(2), args.seconds(6));
    let load = run.await.unwrap();
    results.record(kind, &format!("closed loop of {PLAYERS} players"), &load);
    results.add(Row::ClosedRate, kind, load.rate);
    results.add(Row::ClosedP99, kind, milli(load.latency.quantile(0.99)));
    drop(system);
    let (mut share, mut held, mut failed) = (FIRST_SHARE, None, false);
    for _ in 0..MAX_STEPS {
        let rate = (load.rate * share / 100.0).round() * 100.0;
        let tried = hold(test_bed, kind, rate, args, results).await;
        failed |= tried.is_none();
        match tried {
            Some(found) => {
                held = Some((rate, found));
                if failed {
                    break;
                }
                share += STEP;
            }
            None if held.is_some() => break,
            None => share -= STEP,
        }
    }
    results.add(Row::Sustained, kind, held.as_ref().map_or(0.0, |(rate, _)| *rate));
    if let Some((_, (load, cpu))) = held {
        results.add(Row::SustainedP99, kind, milli(load.latency.quantile(0.99)));
        add_cpu(results, kind, &load, cpu, &Row::CPU_SUSTAINED);
    }
}

/// Returns the load report and the CPU time of a rate, if the rate is sustained.
async fn hold(
    test_bed: &TestBed,
    kind: SystemKind,
    rate: f64,
    args: &Args,
    results: &mut Results,
) -> Option<(LoadReport, Cpu)> {
    let system = test_bed.start(kind, 1).await;
    // A player who waits longer has missed the p99 goal anyway.
    let options = Options { timeout: Duration::from_secs(4), ..Options::default() };
    let (load, cpu) = offer(&system, &options, rate, args.seconds(5)).await;
    results.record(kind, &format!("open loop, {rate:.0}/s"), &load);
    let held = load.is_flawless() && load.latency.quantile(0.99) < MAX_P99;
    held.then_some((load, cpu))
}

/// Measures the latency and the CPU time at a rate that all systems sustain.
pub(crate) async fn latency(test_bed: &TestBed, kind: SystemKind, args: &Args, results: &mut Results) {
    let system = test_bed.start(kind, 1).await;
    let (load, cpu) = offer(&system, &Options::default(), RATE, args.seconds(5)).await;
    results.record(kind, &format!("open loop, {RATE:.0}/s"), &load);
    results.add(Row::P50, kind, milli(load.latency.quantile(0.5)));
    results.add(Row::P99, kind, milli(load.latency.quantile(0.99)));
    results.add(Row::Max, kind, milli(load.latency.max()));
    add_cpu(results, kind, &load, cpu, &Row::CPU);
}

/// Counts the Redis commands per ticket. MONITOR slows Redis down, so nothing else is measured meanwhile.
pub(crate) async fn commands(test_bed: &TestBed, kind: SystemKind, results: &mut Results) {
    let system = test_bed.start(kind, 1).await;
    let monitor = Monitor::start(&system).await;
    let second = Duration::from_secs(1);
    let options = Options::default();
    let load = open_loop(&system.target, &options, RATE, Duration::ZERO, 3 * second).await.unwrap();
    // Waits for the cleanup after the last ticket.
    tokio::time::sleep(second / 2).await;
    let (clients, scripts) = monitor.finish();
    results.record(kind, &format!("open loop, {RATE:.0}/s, with MONITOR"), &load);
    results.add(Row::Commands, kind, clients as f64 / load.all_assigned as f64);
    results.add(Row::ScriptCommands, kind, scripts as f64 / load.all_assigned as f64);
}

/// Measures players who each open a connection.
pub(crate) async fn reconnect(test_bed: &TestBed, kind: SystemKind, args: &Args, results: &mut Results) {
    let system = test_bed.start(kind, 1).await;
    let options = Options { connections: None, ..Options::default() };
    let run = closed_loop(&system.target, &options, RECONNECTING, Duration::from_secs(1), args.seconds(4));
    let load = run.await.unwrap();
    results.record(kind, &format!("closed loop of {RECONNECTING} players who reconnect"), &load);
    results.add(Row::Reconnecting, kind, load.rate);
}

/// Offers players at a rate. Returns the load report and the CPU time that the servers used.
async fn offer(system: &System, options: &Options, rate: f64, seconds: Duration) -> (LoadReport, Cpu) {
    let before = Cpu::of(system);
    let warm_up = Duration::from_millis(1500);
    let load = open_loop(&system.target, options, rate, warm_up, seconds).await.unwrap();
    (load, Cpu::of(system).since(before))
}

fn add_cpu(results: &mut Results, kind: SystemKind, load: &LoadReport, cpu: Cpu, rows: &[Row; 4]) {
    let per_ticket = |time: Duration| time.as_secs_f64() * 1e6 / load.all_assigned as f64;
    for (row, time) in rows.iter().zip([cpu.total(), cpu.frontend, cpu.engine, cpu.redis]) {
        results.add(*row, kind, per_ticket(time));
    }
}

fn milli(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

//! Players who come, are matched, and go.

use std::time::Duration;

use open_match_load::{Options, Outcome, closed_loop, open_loop};

use crate::args::Args;
use crate::results::{Results, Row};
use crate::system::{Kind, Stage, System};
use crate::usage::{Cpu, Monitor};

const PLAYERS: usize = 2000;
const RATE: f64 = 2000.0;
/// The search begins at this share of what the closed loop has reached, and goes on by so much, down or up.
const BEGIN: f64 = 1.1;
const STEP: f64 = 0.1;
const MOST_STEPS: u32 = 8;
const HELD: Duration = Duration::from_secs(1);
const RECONNECTING: usize = 200;

/// How many tickets per second can be assigned: by players who come back at once, then at the highest rate that is held.
pub(crate) async fn sustained(stage: &Stage, kind: Kind, args: &Args, results: &mut Results) {
    let system = stage.start(kind, 1).await;
    let options = Options::default();
    let run = closed_loop(&system.target, &options, PLAYERS, Duration::from_secs(2), args.seconds(6));
    let outcome = run.await.unwrap();
    results.note(kind, &format!("closed loop of {PLAYERS} players"), &outcome);
    results.add(Row::ClosedRate, kind, outcome.rate);
    results.add(Row::ClosedP99, kind, milli(outcome.latency.quantile(0.99)));
    drop(system);
    let (mut share, mut held, mut failed) = (BEGIN, None, false);
    for _ in 0..MOST_STEPS {
        let rate = (outcome.rate * share / 100.0).round() * 100.0;
        let tried = hold(stage, kind, rate, args, results).await;
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
    if let Some((_, (outcome, cpu))) = held {
        results.add(Row::SustainedP99, kind, milli(outcome.latency.quantile(0.99)));
        add_cpu(results, kind, &outcome, cpu, &Row::CPU_SUSTAINED);
    }
}

/// Whether a rate is held, and what it costs.
async fn hold(
    stage: &Stage,
    kind: Kind,
    rate: f64,
    args: &Args,
    results: &mut Results,
) -> Option<(Outcome, Cpu)> {
    let system = stage.start(kind, 1).await;
    // Whoever waits longer than this has not been served in time anyway.
    let options = Options { timeout: Duration::from_secs(4), ..Options::default() };
    let (outcome, cpu) = offer(&system, &options, rate, args.seconds(5)).await;
    results.note(kind, &format!("open loop, {rate:.0}/s"), &outcome);
    let held = outcome.flawless() && outcome.latency.quantile(0.99) < HELD;
    held.then_some((outcome, cpu))
}

/// How long players wait at a rate that everybody holds, and what it costs.
pub(crate) async fn latency(stage: &Stage, kind: Kind, args: &Args, results: &mut Results) {
    let system = stage.start(kind, 1).await;
    let (outcome, cpu) = offer(&system, &Options::default(), RATE, args.seconds(5)).await;
    results.note(kind, &format!("open loop, {RATE:.0}/s"), &outcome);
    results.add(Row::P50, kind, milli(outcome.latency.quantile(0.5)));
    results.add(Row::P99, kind, milli(outcome.latency.quantile(0.99)));
    results.add(Row::Max, kind, milli(outcome.latency.max()));
    add_cpu(results, kind, &outcome, cpu, &Row::CPU);
}

/// What Redis is asked to do for a ticket. Listening to it costs Redis much, so nothing else is measured meanwhile.
pub(crate) async fn commands(stage: &Stage, kind: Kind, results: &mut Results) {
    let system = stage.start(kind, 1).await;
    let monitor = Monitor::start(&system).await;
    let second = Duration::from_secs(1);
    let options = Options::default();
    let outcome = open_loop(&system.target, &options, RATE, Duration::ZERO, 3 * second).await.unwrap();
    // What is cleaned up after the last ticket belongs to it.
    tokio::time::sleep(second / 2).await;
    let (clients, scripts) = monitor.finish();
    results.note(kind, &format!("open loop, {RATE:.0}/s, Redis watched"), &outcome);
    results.add(Row::Commands, kind, clients as f64 / outcome.everybody as f64);
    results.add(Row::ScriptCommands, kind, scripts as f64 / outcome.everybody as f64);
}

/// Players who open a connection each.
pub(crate) async fn reconnect(stage: &Stage, kind: Kind, args: &Args, results: &mut Results) {
    let system = stage.start(kind, 1).await;
    let options = Options { connections: None, ..Options::default() };
    let run = closed_loop(&system.target, &options, RECONNECTING, Duration::from_secs(1), args.seconds(4));
    let outcome = run.await.unwrap();
    results.note(kind, &format!("closed loop of {RECONNECTING} players who reconnect"), &outcome);
    results.add(Row::Reconnecting, kind, outcome.rate);
}

/// Players at a rate, and the processor time of the servers from the first to the last of them.
async fn offer(system: &System, options: &Options, rate: f64, seconds: Duration) -> (Outcome, Cpu) {
    let before = Cpu::of(system);
    let warm_up = Duration::from_millis(1500);
    let outcome = open_loop(&system.target, options, rate, warm_up, seconds).await.unwrap();
    (outcome, Cpu::of(system).since(before))
}

fn add_cpu(results: &mut Results, kind: Kind, outcome: &Outcome, cpu: Cpu, rows: &[Row; 4]) {
    let per_ticket = |time: Duration| time.as_secs_f64() * 1e6 / outcome.everybody as f64;
    for (row, time) in rows.iter().zip([cpu.total(), cpu.frontend, cpu.engine, cpu.redis]) {
        results.add(*row, kind, per_ticket(time));
    }
}

fn milli(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

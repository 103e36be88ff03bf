//! The whole journey of a player, from the line to the entitlement, in random interleavings on processes that are killed.
//!
//! Each round starts a child process that takes random steps until it is killed at a fault point. On a database server the test
//! process takes random steps at the same time. After each round, and at the end, every acknowledged request must have had its effect.
//!
//! Each step, each child process, each round and the whole test has a deadline.

mod checks;
mod facts;
mod process;
mod steps;

use std::os::unix::process::ExitStatusExt;

use testkit::{Program, Redis, Seed};

use self::checks::History;
use self::facts::Fact;
use self::process::{JourneySetup, Process};
use super::*;

/// The environment variable that makes this test the child process. Its value is the `JourneySetup` as JSON.
const CHILD: &str = "TESTKIT_DROPS_JOURNEY";
const TEST: &str = "journey::every_player_is_admitted_once_despite_kills";
/// How many tasks the child process runs, and how many steps each takes at most.
const TASKS: u64 = 4;
const STEPS: usize = 80;
/// How long all rounds on one store may take.
const ALL_ROUNDS: Duration = Duration::from_secs(150);
const SIGKILL: i32 = 9;

/// Fault points, each with the last passage at which the child may be killed. Rare points have low numbers, so that the child reaches them.
const POINTS: [(&str, u32); 22] = [
    ("drops.join.uncommitted", 8),
    ("drops.join.committed", 8),
    ("drops.cycle.read", 6),
    ("drops.cycle.uncommitted", 6),
    ("drops.cycle.committed", 6),
    ("drops.rebuild.begun", 2),
    ("drops.rebuild.filled", 2),
    ("drops.reserve.uncommitted", 6),
    ("drops.reserve.committed", 6),
    ("drops.pay.uncommitted", 4),
    ("drops.pay.committed", 4),
    ("drops.order.granted", 3),
    ("drops.order.uncommitted", 4),
    ("drops.order.committed", 4),
    ("drops.release.uncommitted", 1),
    ("drops.release.committed", 1),
    ("drops.expire.uncommitted", 2),
    ("drops.expire.committed", 2),
    ("drops.adjust.uncommitted", 3),
    ("drops.adjust.committed", 3),
    ("drops.settle.uncommitted", 1),
    ("drops.settle.committed", 1),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_player_is_admitted_once_despite_kills() {
    if let Ok(setup) = std::env::var(CHILD) {
        return run_child(serde_json::from_str(&setup).unwrap()).await;
    }
    let seed = Seed::new();
    for (n, place) in (0..).zip(testkit::need!(TestDatabase::all().await)) {
        let rounds = run_rounds(&place, seed, 10_000 * n);
        tokio::time::timeout(ALL_ROUNDS, rounds).await.expect("the rounds end in time");
    }
}

/// Takes random steps until this process is killed.
async fn run_child(setup: JourneySetup) {
    process::abort_after_max_run_time();
    let seed = setup.seed;
    let process = Process::open(setup, facts::FactLog::to_stdout()).await;
    let tasks =
        (0..TASKS).map(|task| process.take_random_steps(fastrand::Rng::with_seed(seed ^ task), STEPS));
    futures::future::join_all(tasks).await;
    // The process was not killed, so it stops normally.
    process.shop.db.close().await;
}

/// Runs all rounds on one store.
async fn run_rounds(place: &TestDatabase, seed: Seed, first: u64) {
    // Several processes share a Redis. A single process has its line in memory.
    let redis = if place.is_server() { Some(testkit::need!(Redis::private().await)) } else { None };
    let mut choices = seed.choices(first);
    let setup = process::prepare(place, redis.as_ref().map(Redis::url)).await;
    let mut points = POINTS;
    choices.shuffle(&mut points);
    let (mut history, mut killed) = (History::default(), 0);
    for (round, (point, last)) in points.iter().enumerate() {
        let setup = setup.with_seed(choices.u64(..));
        let fault = format!("{point}@{}", choices.u32(1..=*last));
        let child = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(CHILD, serde_json::to_string(&setup).unwrap())
            .env("TESTKIT_FAULT", &fault)
            .start()
            .unwrap();
        // Only one process may open a SQLite file.
        let concurrent_steps = async {
            if place.is_server() {
                let process = Process::open(setup.clone(), facts::FactLog::default()).await;
                process.take_random_steps(seed.choices(first + 1 + round as u64), STEPS).await;
                history.add(process.fact_log.take());
                process.shop.db.close().await;
            }
        };
        let (status, ()) = tokio::join!(child.wait(PATIENCE * 2), concurrent_steps);
        let is_killed = status.signal() == Some(SIGKILL);
        assert!(is_killed || status.success(), "{fault}: {status}: {:#?}", child.lines());
        killed += usize::from(is_killed);
        history.add(child.lines().iter().filter_map(|line| Fact::parse(&line.text)).collect());
        let process = Process::open(setup, facts::FactLog::default()).await;
        checks::check_after_round(&process, &mut history).await;
        process.shop.db.close().await;
    }
    let rounds = points.len();
    assert!(2 * killed >= rounds, "{killed} of {rounds} processes were killed");
    let process = Process::open(setup, facts::FactLog::default()).await;
    checks::check_at_end(&process, &mut history, choices).await;
    eprintln!("{killed} of {rounds} processes were killed; {history}");
}

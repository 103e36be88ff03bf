//! The whole way of a player, from the line to the entitlement, in random interleavings on processes that are killed.
//!
//! Each round starts a process that does random things until it is killed at one of the fault points. On a database server this process does random
//! things beside it. After each round, and at the end, everything that was acknowledged must be true.
//!
//! Nothing here can wait for ever: each step has a deadline, and so have the process that is killed, a round and the test.

mod facts;
mod steps;
mod verdict;
mod world;

use std::os::unix::process::ExitStatusExt;

use testkit::{Program, Redis, Seed};

use self::facts::Fact;
use self::verdict::Witness;
use self::world::{Scene, World};
use super::*;

/// What the process that is killed works on, as JSON.
const DOOMED: &str = "TESTKIT_DROPS_JOURNEY";
const TEST: &str = "journey::whatever_dies_every_player_gets_through_once";
/// How many tasks the process that is killed has, and how many steps each takes at most.
const TASKS: u64 = 4;
const STEPS: usize = 80;
/// How long all rounds on one store may take.
const WHOLE: Duration = Duration::from_secs(150);
const SIGKILL: i32 = 9;

/// Where a process is killed, and the last of the times that it gets there at which it may be: rare points early, so that they are met.
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
async fn whatever_dies_every_player_gets_through_once() {
    if let Ok(scene) = std::env::var(DOOMED) {
        return doomed(serde_json::from_str(&scene).unwrap()).await;
    }
    let seed = Seed::new();
    for (n, place) in (0..).zip(testkit::need!(SqlPlace::all().await)) {
        let surviving = survive(&place, seed, 10_000 * n);
        tokio::time::timeout(WHOLE, surviving).await.expect("the rounds end in time");
    }
}

/// A process that does random things until it is killed.
async fn doomed(scene: Scene) {
    world::abort_when_late();
    let seed = scene.seed;
    let world = World::open(scene, facts::Notes::printed()).await;
    let storms = (0..TASKS).map(|task| world.storm(fastrand::Rng::with_seed(seed ^ task), STEPS));
    futures::future::join_all(storms).await;
    // It was not killed, and ends as a process does that is stopped.
    world.shop.db.close().await;
}

/// Runs all rounds on one store.
async fn survive(place: &SqlPlace, seed: Seed, first: u64) {
    // One process has its line in its memory, as with embedded stores; several share a Redis.
    let redis = if place.is_server() { Some(testkit::need!(Redis::private().await)) } else { None };
    let mut choices = seed.choices(first);
    let scene = world::prepare(place, redis.as_ref().map(Redis::url)).await;
    let mut points = POINTS;
    choices.shuffle(&mut points);
    let (mut witness, mut killed) = (Witness::default(), 0);
    for (round, (point, last)) in points.iter().enumerate() {
        let scene = scene.with_seed(choices.u64(..));
        let fault = format!("{point}@{}", choices.u32(1..=*last));
        let doomed = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(DOOMED, serde_json::to_string(&scene).unwrap())
            .env("TESTKIT_FAULT", &fault)
            .start()
            .unwrap();
        // A SQLite file has one process.
        let beside = async {
            if place.is_server() {
                let world = World::open(scene.clone(), facts::Notes::default()).await;
                world.storm(seed.choices(first + 1 + round as u64), STEPS).await;
                witness.heard(world.notes.take());
                world.shop.db.close().await;
            }
        };
        let (status, ()) = tokio::join!(doomed.wait(PATIENCE * 2), beside);
        let is_killed = status.signal() == Some(SIGKILL);
        assert!(is_killed || status.success(), "{fault}: {status}: {:#?}", doomed.lines());
        killed += usize::from(is_killed);
        witness.heard(doomed.lines().iter().filter_map(|line| Fact::parse(&line.text)).collect());
        let world = World::open(scene, facts::Notes::default()).await;
        verdict::after_a_round(&world, &mut witness).await;
        world.shop.db.close().await;
    }
    let rounds = points.len();
    assert!(2 * killed >= rounds, "{killed} of {rounds} processes were killed");
    let world = World::open(scene, facts::Notes::default()).await;
    verdict::at_the_end(&world, &mut witness, choices).await;
    eprintln!("{killed} of {rounds} processes were killed; {witness}");
}

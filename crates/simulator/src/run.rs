//! The run: prepares the instance, lets the players live, and collects what they saw.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Clock;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use crate::api::{Api, Call, GaveUp};
use crate::checks::check;
use crate::device::stream_client;
use crate::history::{DropTruth, History, PlayerHistory};
use crate::meter::Meter;
use crate::operator;
use crate::player::Player;
use crate::processes::{Processes, raise_file_limit};
use crate::progress::Progress;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::target::Target;
use crate::tasks::{message, run_all};
use crate::world::World;

/// How many players are read at a time at the end.
const READ_AT_ONCE: usize = 64;
/// How long a killed process may take to run again after the last player has finished.
const RESTART: Duration = Duration::from_secs(120);

/// What to run.
#[derive(Debug)]
pub struct Options {
    pub scenario: Scenario,
    /// The name of the scenario in the report.
    pub name: String,
    pub seed: u64,
    pub clock: Clock,
    /// Becomes true when the run is to end: players stop where they are, and what they saw is checked.
    pub stop: watch::Receiver<bool>,
    /// Processes of the simulator that are killed and restarted during the run.
    pub faults: Option<Processes>,
}

/// Runs a scenario. Fails if the instance cannot be prepared, or a task of the simulator itself does; broken promises are in the report.
pub async fn run(options: Options, target: Target) -> Result<Report, GaveUp> {
    let Options { scenario, name, seed, faults, clock, stop } = options;
    raise_file_limit();
    let began = clock.now();
    let meter = Arc::new(Meter::new());
    let started = Instant::now();
    let players_end = started + scenario.give_up;
    let api = Api::new(&target, meter.clone(), players_end)?;
    let run = Uuid::new_v4().simple().to_string()[..8].to_owned();
    let mut world = World {
        scenario,
        target,
        api,
        streams: stream_client()?,
        players_end,
        run,
        seed,
        clock,
        drop_id: None,
        users: Mutex::default(),
        queue: None,
        stop,
    };
    prepare(&mut world).await?;
    let world = Arc::new(world);
    let progress = Progress::start(world.clone());
    let opening = tokio::spawn(open_in_time(world.clone()));
    let faulting = faults.map(|processes| tokio::spawn(cause_faults(world.clone(), processes)));
    let living = (0..world.scenario.players as usize).map(|number| {
        let player = Player::new(world.clone(), number);
        (player.name.clone(), player.live(started))
    });
    let finished = || world.api.meter.count(|counts| counts.finished += 1);
    let (players, panicked) = run_all(living, usize::MAX, finished).await;
    opening.abort();
    if let Err(error) = opening.await
        && error.is_panic()
    {
        return Err(GaveUp(format!("the task that opens the drop panicked: {}", message(error))));
    }
    // All processes run again before the truth is read.
    let processes = match faulting {
        Some(task) => Some(task_end(&world, task).await?),
        None => None,
    };
    let history = collect(&world, players, panicked).await;
    progress.stop().await;
    drop(processes);
    let violations = check(&history);
    let figures = meter.snapshot();
    Ok(Report {
        name,
        seed,
        run: world.run.clone(),
        sign_in: world.target.sign_in.describe(),
        began,
        took: started.elapsed(),
        scenario: world.scenario.clone(),
        figures,
        history,
        violations,
    })
}

/// Finds the queue, and creates the drop.
async fn prepare(world: &mut World) -> Result<(), GaveUp> {
    let config = world.api.anyone(&Call::get("client config", "/v1/client-config")).await?;
    if !config.is_success() {
        return Err(GaveUp(format!("the gateway answered /v1/client-config with {}", config.describe())));
    }
    if world.scenario.matchmaking.share > 0.0 {
        let queues = config.body["queues"].as_array().cloned().unwrap_or_default();
        let listed: Vec<&str> = queues.iter().filter_map(|queue| queue.as_str()).collect();
        let wanted = world.scenario.matchmaking.queue.as_deref().or(listed.first().copied());
        let Some(queue) = wanted.filter(|queue| listed.contains(queue)) else {
            let wanted = wanted
                .map_or("no queue is configured".to_owned(), |queue| format!("there is no queue {queue:?}"));
            return Err(GaveUp(format!(
                "{wanted} on this instance. Its queues: {listed:?}. Set matchmaking.share to 0 to play no matches"
            )));
        };
        world.queue = Some(queue.to_owned());
    }
    if world.scenario.drop.share > 0.0 {
        let created =
            operator::create_drop(&world.api, &world.scenario.drop, &world.run, &world.resource()).await?;
        world.drop_id = Some(created);
    }
    Ok(())
}

/// Opens the drop when enough players have arrived, and notes the line and the stock every second.
async fn open_in_time(world: Arc<World>) {
    let Some(drop_id) = &world.drop_id else { return };
    let after = f64::from(world.scenario.players) * world.scenario.drop.opens_after;
    let mut every_second = interval(Duration::from_secs(1));
    every_second.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut is_open = false;
    loop {
        every_second.tick().await;
        if !is_open && world.api.meter.counts().arrived as f64 >= after {
            is_open = operator::open_drop(&world.api, drop_id).await.is_ok();
            world.api.meter.mark("the drop opens".to_owned());
        }
        if let Some((waiting, available)) = operator::watch_drop(&world.api, drop_id).await {
            world.api.meter.sample(waiting, available);
        }
    }
}

/// Kills a process now and then and restarts it, until all players have finished. All processes run at the end.
async fn cause_faults(world: Arc<World>, mut processes: Processes) -> Result<Processes, GaveUp> {
    let plan = world.scenario.faults;
    let mut random = fastrand::Rng::with_seed(world.seed);
    let all = u64::from(world.scenario.players);
    // In a random order, but each of them before one is killed again.
    let mut next: Vec<usize> = Vec::new();
    while world.api.meter.counts().finished < all {
        if next.is_empty() {
            next.extend(0..processes.count());
            random.shuffle(&mut next);
        }
        let (until, victim) = (Instant::now() + plan.every, next.pop().unwrap_or_default());
        while Instant::now() < until && world.api.meter.counts().finished < all {
            sleep(Duration::from_millis(200)).await;
        }
        if world.api.meter.counts().finished >= all {
            break;
        }
        world.api.meter.mark(format!("process {} is killed", victim + 1));
        processes.kill(victim).await;
        sleep(plan.down_for).await;
        processes.restart(victim).await?;
        world.api.meter.mark(format!("process {} runs again", victim + 1));
    }
    Ok(processes)
}

async fn task_end(
    world: &World,
    task: tokio::task::JoinHandle<Result<Processes, GaveUp>>,
) -> Result<Processes, GaveUp> {
    let wait = world.scenario.faults.down_for + RESTART;
    match tokio::time::timeout(wait, task).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => Err(GaveUp(format!("the faults ended early: {error}"))),
        Err(_) => Err(GaveUp("a killed process did not start again".to_owned())),
    }
}

/// Reads back what the instance knows of the players and the drop. What cannot be read is in the history as unread: the checks report it.
async fn collect(world: &World, players: Vec<Player>, panicked: Vec<PlayerHistory>) -> History {
    world.api.begin_reading();
    world.api.meter.begin_reading();
    let was_read = || world.api.meter.count(|counts| counts.read_back += 1);
    panicked.iter().for_each(|_| was_read());
    let mut unread = Vec::new();
    // The drop first: players who still wait are notified that it ended.
    if let Some(drop_id) = &world.drop_id
        && let Err(GaveUp(why)) = operator::close_drop(&world.api, drop_id).await
    {
        unread.push(format!("the drop {drop_id} cannot be closed at the end: {why}"));
    }
    let reading = players.into_iter().map(|player| (player.name.clone(), player.finish()));
    let (mut histories, panicked_at_the_end) = run_all(reading, READ_AT_ONCE, was_read).await;
    histories.extend(panicked.into_iter().chain(panicked_at_the_end));
    histories.sort_by(|one, other| one.name.cmp(&other.name));
    let mut drop: Option<DropTruth> = None;
    if let Some(drop_id) = &world.drop_id {
        match operator::read_drop(&world.api, drop_id).await {
            Ok(truth) => drop = Some(truth),
            Err(GaveUp(why)) => {
                unread.push(format!(
                    "the drop {drop_id} cannot be read at the end, so its line and stock are not checked: {why}"
                ));
            }
        }
    }
    History { players: histories, drop, unread }
}

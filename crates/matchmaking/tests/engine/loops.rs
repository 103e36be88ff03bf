//! The engine's loop: when it ticks, and how it stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use matchmaking::Engine;
use matchmaking::engine::{EngineConfig, Fifo, Profile};
use matchmaking::model::TicketId;
use runtime::Drain;
use testkit::{Redis, eventually, need};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::plugins::{Fault, assigner, duels, duels_of, function, servers};
use crate::world::{World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    shutdown_waits_for_the_assigner_and_writes_its_assignments,
    shutdown_waits_for_the_match_function_and_leaves_nothing_pending,
    tickets_are_matched_on_arrival_without_waiting_for_the_tick,
    two_engines_match_tickets_that_arrive_one_by_one,
    tickets_released_by_another_engine_are_fetched_soon,
    queue_longer_than_one_fetch_is_drained_without_pauses,
    slow_assigner_does_not_delay_other_profiles,
    unmatchable_tickets_do_not_cause_a_busy_loop,
    engine_backs_off_while_a_dead_engine_holds_tickets,
    failing_plugins_are_paused_however_long_the_queue,
    profiles_change_while_the_engine_runs,
}

/// A running engine, as in a process.
pub(crate) struct Running {
    drain: Drain,
    run: JoinHandle<()>,
    listen: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(engine: &Engine) -> Self {
        let drain = Drain::new();
        let (running, listening) = (engine.clone(), engine.clone());
        let (run, listen) = (drain.clone(), drain.clone());
        Self {
            run: tokio::spawn(async move { running.run(run).await.unwrap() }),
            listen: tokio::spawn(async move {
                // A process would restart it too.
                while !listen.is_requested() {
                    let _ = listening.listen(listen.clone()).await;
                }
            }),
            drain,
        }
    }

    pub(crate) async fn stop(self) {
        self.drain.request();
        tokio::time::timeout(PATIENCE, self.run).await.unwrap().unwrap();
        tokio::time::timeout(PATIENCE, self.listen).await.unwrap().unwrap();
    }
}

async fn all_assigned(world: &World, tickets: &[TicketId]) -> Result<(), String> {
    for (at, ticket) in tickets.iter().enumerate() {
        if !world.is_assigned(ticket).await {
            return Err(format!("{at} of {} are assigned", tickets.len()));
        }
    }
    Ok(())
}

/// Stops an engine while a plugin is blocked.
async fn stop_at_the_gate(engine: &Engine, at_the_gate: &Semaphore, gate: &Semaphore) {
    let Running { drain, mut run, listen } = Running::start(engine);
    at_the_gate.acquire().await.unwrap().forget();
    drain.request();
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut run).await.is_err(), "it did not wait");
    gate.add_permits(1);
    tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
    tokio::time::timeout(PATIENCE, listen).await.unwrap().unwrap();
}

async fn shutdown_waits_for_the_assigner_and_writes_its_assignments(world: World) {
    let (at_the_gate, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (there, open) = (at_the_gate.clone(), gate.clone());
    let slow = assigner(move |matches| {
        let (there, open) = (there.clone(), open.clone());
        async move {
            there.add_permits(1);
            open.acquire().await.unwrap().forget();
            Ok(servers(&matches))
        }
    });
    let [a, b, odd] = world.tickets(&[]).await;
    let config = EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
    let engine = world.engine_with(vec![Profile { assigner: slow, ..duels() }], config);
    stop_at_the_gate(&engine, &at_the_gate, &gate).await;
    assert!(world.is_assigned(&a).await && world.is_assigned(&b).await);
    assert_eq!(world.free().await, [odd]);
}

async fn shutdown_waits_for_the_match_function_and_leaves_nothing_pending(world: World) {
    let (at_the_gate, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (there, open) = (at_the_gate.clone(), gate.clone());
    let slow = function(move |_| {
        let (there, open) = (there.clone(), open.clone());
        async move {
            there.add_permits(1);
            open.acquire().await.unwrap().forget();
            Err("no luck".into())
        }
    });
    let tickets: [TicketId; 3] = world.tickets(&[]).await;
    let config = EngineConfig { function_timeout: PATIENCE, ..engine_config() };
    let engine = world.engine_with(vec![Profile { function: slow, ..duels() }], config);
    stop_at_the_gate(&engine, &at_the_gate, &gate).await;
    assert_eq!(world.free().await, tickets);
}

/// Waits until this many engines are idle.
async fn idle(world: &World, engines: f64) {
    // Each engine fetches once at first, and once more when its Redis subscription begins.
    let looks = match world.store {
        matchmaking::Store::Memory(_) => engines,
        matchmaking::Store::Redis(_) => 2.0 * engines,
    };
    let count = || async { world.metric("minimatch_backend_fetch_tickets_latency_seconds_count") >= looks };
    eventually("the engine waits", PATIENCE, count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_engine_is_not_woken_any_more() {
    let redis = need!(Redis::private().await);
    let world = World::at(&redis.url()).await;
    let client = ::redis::Client::open(redis.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let idle_engines = async || {
        let ask = ::redis::cmd("SCARD").arg("idleEngines").to_owned();
        ask.query_async::<u64>(&mut connection.clone()).await.unwrap()
    };
    let running = [(); 2].map(|()| Running::start(&world.engine(vec![duels()])));
    let mut left = 2;
    for running in running {
        eventually("the engines are idle", PATIENCE, async || idle_engines().await == left).await;
        running.stop().await;
        left -= 1;
        assert_eq!(idle_engines().await, left, "an engine that stopped is still idle");
    }
}

async fn tickets_are_matched_on_arrival_without_waiting_for_the_tick(world: World) {
    let engine = world.engine(vec![duels()]);
    let running = Running::start(&engine);
    idle(&world, 1.0).await;
    for _ in 0..10 {
        let pair = [world.put().await, world.put().await];
        eventually("a match", Duration::from_secs(1), || all_assigned(&world, &pair)).await;
    }
    running.stop().await;
}

async fn profiles_change_while_the_engine_runs(world: World) {
    let engine = world.engine(Vec::new());
    let running = Running::start(&engine);
    let pair = [world.put().await, world.put().await];
    assert_eq!(world.free().await, pair, "without profiles all tickets belong to Directors");
    assert!(world.metric("minimatch_backend_fetch_tickets_latency_seconds_count") < 1.0);

    // Nothing else wakes the engine, and its tick is an hour away.
    engine.set_profiles(vec![duels()]);
    eventually("a match", PATIENCE, || all_assigned(&world, &pair)).await;
    engine.set_profiles(vec![Profile { function: Arc::new(Fifo::new(3)), ..duels() }]);
    let three = [world.put().await, world.put().await, world.put().await];
    eventually("a match of three", PATIENCE, || all_assigned(&world, &three)).await;
    assert_eq!(world.made().await.last().unwrap().ticket_ids.len(), 3);

    engine.set_profiles(Vec::new());
    let last = [world.put().await, world.put().await, world.put().await];
    eventually("no engine holds tickets", PATIENCE, async || world.free().await == last).await;
    engine.set_profiles(vec![Profile { function: Arc::new(Fifo::new(3)), ..duels() }]);
    eventually("a match again", PATIENCE, || all_assigned(&world, &last)).await;
    running.stop().await;
}

async fn two_engines_match_tickets_that_arrive_one_by_one(world: World) {
    let one = world.engine(vec![duels()]);
    let two = world.engine_over(world.another_store().await, vec![duels()], engine_config());
    let running = [Running::start(&one), Running::start(&two)];
    idle(&world, 2.0).await;
    for round in 0..30 {
        // Sometimes together, sometimes one after the other.
        let pair = if round % 2 == 0 {
            let (a, b) = tokio::join!(world.put(), world.put());
            [a, b]
        } else {
            [world.put().await, world.put().await]
        };
        eventually("a match", Duration::from_secs(1), || all_assigned(&world, &pair)).await;
    }
    for running in running {
        running.stop().await;
    }
    assert_eq!(world.made().await.len(), 30);
}

async fn tickets_released_by_another_engine_are_fetched_soon(world: World) {
    let running = Running::start(&world.engine(vec![duels()]));
    idle(&world, 1.0).await;
    let looks = || world.metric("minimatch_backend_fetch_tickets_latency_seconds_count");
    for _ in 0..3 {
        let held = world.put().await;
        // Whichever engine is first, the other one gets the ticket in the end.
        let had = eventually("the other engine has it", PATIENCE, async || {
            world.store.fetch(&"another".into(), 1).await.unwrap().ids.pop()
        });
        assert_eq!(had.await, held);
        let before = looks();
        let alone = world.put().await;
        eventually("a look at one", PATIENCE, async || looks() > before).await;
        world.store.release(std::slice::from_ref(&held)).await.unwrap();
        // Nothing wakes the engine, and its tick is an hour away.
        let pair = [held, alone];
        eventually("a match", Duration::from_secs(1), || all_assigned(&world, &pair)).await;
    }
    running.stop().await;
}

async fn queue_longer_than_one_fetch_is_drained_without_pauses(world: World) {
    let mut tickets = Vec::new();
    for _ in 0..500 {
        tickets.push(world.put().await);
    }
    let config = EngineConfig { fetch_limit: 10, ..engine_config() };
    let running = Running::start(&world.engine_with(vec![duels()], config));
    eventually("an empty queue", Duration::from_secs(5), || all_assigned(&world, &tickets)).await;
    running.stop().await;
}

async fn slow_assigner_does_not_delay_other_profiles(world: World) {
    let gate = Arc::new(Semaphore::new(0));
    let open = gate.clone();
    let slow = assigner(move |matches| {
        let open = open.clone();
        async move {
            open.acquire().await.unwrap().forget();
            Ok(servers(&matches))
        }
    });
    let config = EngineConfig { assigner_timeout: PATIENCE, ..engine_config() };
    let slow = Profile { assigner: slow, ..duels_of("slow") };
    let running = Running::start(&world.engine_with(vec![slow, duels_of("quick")], config));
    let slow: [TicketId; 2] = world.tickets(&["slow"]).await;
    for _ in 0..3 {
        let quick: [TicketId; 2] = world.tickets(&["quick"]).await;
        eventually("the quick match", Duration::from_secs(1), || all_assigned(&world, &quick)).await;
    }
    assert!(!world.is_assigned(&slow[0]).await);
    assert!(world.free().await.is_empty(), "what is being assigned can be had by nobody else");
    gate.add_permits(1);
    eventually("the slow match", PATIENCE, || all_assigned(&world, &slow)).await;
    running.stop().await;
}

async fn unmatchable_tickets_do_not_cause_a_busy_loop(world: World) {
    let looks = || world.metric("minimatch_backend_fetch_tickets_latency_seconds_count");
    for _ in 0..25 {
        world.ticket(&["nowhere"]).await;
    }
    let config = EngineConfig { fetch_limit: 10, ..engine_config() };
    let running = Running::start(&world.engine_with(vec![duels_of("somewhere")], config));
    idle(&world, 2.0).await;
    let before = looks();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let more = looks() - before;
    assert!(more <= 12.0, "{more} looks in 300 ms at tickets that fit nowhere");
    // They do not block the tickets behind them either.
    let pair: [TicketId; 2] = world.tickets(&["somewhere"]).await;
    eventually("a match", PATIENCE, || all_assigned(&world, &pair)).await;
    running.stop().await;
}

async fn engine_backs_off_while_a_dead_engine_holds_tickets(world: World) {
    world.ticket(&[]).await;
    world.store.fetch(&"dead".into(), 1).await.unwrap();
    world.ticket(&[]).await;
    let looks = || world.metric("minimatch_backend_fetch_tickets_latency_seconds_count");
    let config =
        EngineConfig { tick: Duration::from_secs(10), gather: Duration::from_millis(5), ..engine_config() };
    let running = Running::start(&world.engine_with(vec![duels()], config));
    eventually("some looks", PATIENCE, async || looks() >= 4.0).await;
    let before = looks();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let more = looks() - before;
    assert!(more <= 8.0, "{more} looks in 600 ms");
    running.stop().await;
}

async fn failing_plugins_are_paused_however_long_the_queue(world: World) {
    for _ in 0..20 {
        world.put().await;
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let (in_function, in_assigner) = (calls.clone(), calls.clone());
    let failing_function = function(move |_| {
        in_function.fetch_add(1, Ordering::Relaxed);
        Fault::Error.happen()
    });
    let failing_assigner = assigner(move |_| {
        in_assigner.fetch_add(1, Ordering::Relaxed);
        Fault::Error.happen()
    });
    let config = EngineConfig { fetch_limit: 10, tick: Duration::from_millis(100), ..engine_config() };
    for profile in
        [Profile { function: failing_function, ..duels() }, Profile { assigner: failing_assigner, ..duels() }]
    {
        calls.store(0, Ordering::Relaxed);
        let running = Running::start(&world.engine_with(vec![profile], config.clone()));
        eventually("three calls", PATIENCE, async || calls.load(Ordering::Relaxed) >= 3).await;
        let before = calls.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(400)).await;
        let more = calls.load(Ordering::Relaxed) - before;
        assert!(more <= 16, "{more} calls in 400 ms");
        eventually("another call", PATIENCE, async || calls.load(Ordering::Relaxed) > before).await;
        running.stop().await;
    }
    assert_eq!(world.free().await.len(), 20);
}

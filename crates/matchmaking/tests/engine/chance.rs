//! Many engines, random plugin failures, random cancellations: no ticket is lost, and none is assigned twice.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Clock;
use buffa::Message;
use fastrand::Rng;
use futures::future::join_all;
use matchmaking::Engine;
use matchmaking::engine::{EngineConfig, Profile};
use matchmaking::model::{Proposal, TicketId};
use matchmaking::store::DeleteOutcome;
use proto::openmatch::Assignment;
use testkit::Seed;

use crate::on_both_stores;
use crate::plugins::{Fault, assigner, evaluator, function, servers, tagged};
use crate::world::{World, engine_config};

const TICKETS: usize = 2000;
const ENGINES: usize = 4;
/// How long engines keep running once all tickets exist.
const LONGEST: Duration = Duration::from_secs(5);

on_both_stores! {
    every_ticket_is_assigned_once_or_cancelled_or_waiting,
    every_ticket_is_assigned_once_with_a_short_pending_timeout,
}

#[derive(Clone)]
struct Dice(Arc<Mutex<Rng>>);

impl Dice {
    fn new(choices: Rng) -> Self {
        Self(Arc::new(Mutex::new(choices)))
    }

    fn one_in(&self, n: u32) -> bool {
        self.0.lock().unwrap().u32(0..n) == 0
    }

    /// Returns a random fault, rarely a slow one.
    fn fault(&self) -> Option<Fault> {
        match self.0.lock().unwrap().u32(0..100) {
            0..10 => Some(Fault::Error),
            10..15 => Some(Fault::Panic),
            15 => Some(Fault::Hang),
            _ => None,
        }
    }

    fn shuffle<T>(&self, list: &mut [T]) {
        self.0.lock().unwrap().shuffle(list);
    }
}

/// Pairs tickets of one tag in random order, and proposes some pairs twice.
fn profile(tag: &str, dice: &Dice) -> Profile {
    let (of, at) = (dice.clone(), dice.clone());
    Profile {
        name: tag.into(),
        pools: vec![tagged(tag)],
        version: 0,
        max_wait: None,
        function: function(move |pools| {
            let dice = of.clone();
            async move {
                if let Some(fault) = dice.fault() {
                    return fault.happen().await;
                }
                let mut tickets = pools.pools[0].1.clone();
                dice.shuffle(&mut tickets);
                let pairs =
                    tickets.chunks_exact(2).chain(tickets.get(1..).unwrap_or_default().chunks_exact(2));
                Ok(pairs.map(|pair| Proposal::new(pair.to_vec())).collect())
            }
        }),
        assigner: assigner(move |matches| {
            let dice = at.clone();
            async move {
                if let Some(fault) = dice.fault() {
                    return fault.happen().await;
                }
                if dice.one_in(3) {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                Ok(servers(&matches).into_iter().filter(|_| !dice.one_in(10)).collect())
            }
        }),
        ready_check: None,
        backfill: false,
    }
}

async fn engine(world: &World, choices: Rng) -> Engine {
    let dice = Dice::new(choices);
    let profiles = vec![profile("a", &dice), profile("b", &dice)];
    let limit = Duration::from_millis(40);
    let config = EngineConfig {
        fetch_limit: 64,
        function_timeout: limit,
        evaluator_timeout: limit,
        assigner_timeout: limit,
        ..engine_config()
    };
    let careless = evaluator(move |matches| {
        let dice = dice.clone();
        async move {
            if let Some(fault) = dice.fault() {
                return fault.happen().await;
            }
            let mut ids: Vec<_> = matches.iter().map(|made| made.id).collect();
            dice.shuffle(&mut ids);
            Ok(ids)
        }
    });
    world.engine_over(world.another_store().await, profiles, config).with_evaluator(careless)
}

async fn every_ticket_is_assigned_once_or_cancelled_or_waiting(world: World) {
    play(world).await;
}

async fn every_ticket_is_assigned_once_with_a_short_pending_timeout(world: World) {
    // Tickets become active again at once, or with Redis in the next second.
    let world = world.under_at(Clock::system(), |rules| rules.pending_timeout = Duration::ZERO);
    play(world).await;
}

async fn play(world: World) {
    let seed = Seed::new();
    let world = Arc::new(world);
    let all_made = Arc::new(AtomicBool::new(false));
    let mut working = Vec::new();
    for number in 0..ENGINES as u64 {
        let (engine, all_made) = (engine(&world, seed.choices(number)).await, all_made.clone());
        working.push(tokio::spawn(async move {
            let mut ticks = 0;
            let mut last = 0;
            let mut since_all_made = None;
            // Run more ticks once all tickets exist, but not until all are assigned. A failed assigner is not called
            // for a while, so a number of ticks alone would not do.
            while last < 25 && since_all_made.is_none_or(|since: Instant| since.elapsed() < LONGEST) {
                let tick = engine.tick().await.unwrap();
                ticks += 1;
                if all_made.load(Ordering::Relaxed) {
                    since_all_made.get_or_insert_with(Instant::now);
                    last += usize::from(tick.assigned > 0);
                }
                if tick.assigned == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            ticks
        }));
    }
    let dice = Dice::new(seed.choices(ENGINES as u64));
    let (mut tickets, mut left) = (Vec::new(), HashMap::new());
    while tickets.len() < TICKETS {
        let tags: [&[&str]; 4] = [&["a"], &["b"], &["a", "b"], &["b", "a"]];
        tickets.extend(join_all(tags.map(|tags| world.ticket(tags))).await);
        if dice.one_in(2) {
            let who: &TicketId = &tickets[dice.0.lock().unwrap().usize(0..tickets.len())];
            let left_now = world.store.delete(who).await.unwrap();
            left.entry(who.clone()).or_insert(left_now);
        }
    }
    all_made.store(true, Ordering::Relaxed);
    for working in working {
        assert!(working.await.unwrap() > 0);
    }
    assert_every_ticket_is_accounted_for(&world, &tickets, &left).await;
}

async fn assert_every_ticket_is_accounted_for(
    world: &World,
    tickets: &[TicketId],
    left: &HashMap<TicketId, DeleteOutcome>,
) {
    let mut connections = HashMap::new();
    for made in world.made().await {
        assert_eq!(made.ticket_ids.len(), 2, "{made:?}");
        for id in &made.ticket_ids {
            let twice = connections.insert(TicketId::parse(id).unwrap(), made.assignment.connection.clone());
            assert_eq!(twice, None, "{id} is in two matches");
        }
    }
    let free: HashSet<TicketId> = world.free().await.into_iter().collect();
    let (mut played, mut waiting) = (0, 0);
    let statuses = join_all(tickets.iter().map(|ticket| world.store.status(ticket))).await;
    for (ticket, status) in tickets.iter().zip(statuses) {
        let status = status.unwrap();
        let assigned = status.found.assignment.as_ref();
        let assigned = assigned.map(|data| Assignment::decode_from_slice(data).unwrap().connection);
        assert_eq!(assigned.as_ref(), connections.get(ticket), "{ticket}");
        if connections.contains_key(ticket) {
            assert_ne!(left.get(ticket), Some(&DeleteOutcome::Deleted), "{ticket} has left and plays");
            assert!(!status.is_indexed && !free.contains(ticket), "{ticket} plays and waits");
            played += 1;
        } else if let Some(how) = left.get(ticket) {
            assert_eq!(*how, DeleteOutcome::Deleted, "{ticket} was assigned as well");
            assert!(!status.is_indexed && status.found.data.is_none(), "{ticket} has left and waits");
        } else {
            assert!(status.is_indexed && status.found.data.is_some(), "{ticket} is lost");
            assert!(status.pending_since.is_none() && free.contains(ticket), "{ticket} is held by nobody");
            waiting += 1;
        }
    }
    assert_eq!(free.len(), waiting);
    assert!(played > TICKETS / 2, "only {played} play, {waiting} wait");
    assert!(left.len() > 100, "{} left", left.len());
}

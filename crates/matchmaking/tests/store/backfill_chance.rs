//! Random interleavings of match functions, game servers, players, engines and crashes: no ticket is lost, none is
//! assigned twice, and none is in a backfill and in another match.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use buffa::Message;
use fastrand::Rng;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use matchmaking::MatchRecorder;
use matchmaking::model::{BackfillId, TicketId};
use matchmaking::store::{
    AcknowledgeOutcome, AfterNotify, AssignBackfillOutcome, Assignments, ClaimOutcome, ClaimRequest,
    DeleteOutcome, Holder, UnrecordedBatch,
};
use proto::openmatch::Backfill;
use testkit::{Seed, eventually};

use crate::backfills::{server, tagged, try_claim};
use crate::setup::{PATIENCE, Setup, Tickets, group, id, matches};

for_every_store! {
    every_ticket_of_a_backfill_is_assigned_once_or_released,
    concurrent_steps_lose_and_double_no_ticket_of_a_backfill,
}

const ROUNDS: usize = 150;
/// How many steps run at the same time, each in a process of its own.
const PROCESSES: usize = 3;

/// Records nothing, so that all batches stay in the store, where the test reads them.
#[derive(Debug)]
struct NoDatabase;

impl MatchRecorder for NoDatabase {
    fn record<'a>(&'a self, _: &'a UnrecordedBatch) -> BoxFuture<'a, bool> {
        async { false }.boxed()
    }
}

#[derive(Default)]
struct World {
    created: Mutex<usize>,
    backfills: Mutex<Vec<Backfill>>,
    cancelled: Mutex<HashSet<TicketId>>,
    /// The backfill of the latest claim on each ticket, empty for other claims. Only exact if steps do not overlap.
    claimed: Mutex<HashMap<TicketId, String>>,
    /// The generation of each backfill. Only exact if steps do not overlap.
    generations: Mutex<HashMap<String, i64>>,
    /// The tickets that game servers were seen to have.
    joined: Mutex<HashSet<TicketId>>,
    are_steps_concurrent: bool,
    /// How often each kind of step had an effect.
    effects: Mutex<HashMap<&'static str, usize>>,
}

impl World {
    fn count(&self, what: &'static str) {
        *self.effects.lock().unwrap().entry(what).or_default() += 1;
    }

    fn set_claimed(&self, tickets: &[TicketId], backfill: &str) {
        let tickets = tickets.iter().map(|ticket| (ticket.clone(), backfill.to_owned()));
        self.claimed.lock().unwrap().extend(tickets);
    }

    /// Checks that these newly assigned tickets were in the backfill, and in nothing else since.
    fn assert_were_in(&self, backfill: &str, tickets: impl IntoIterator<Item = TicketId>) {
        let claimed = self.claimed.lock().unwrap();
        for ticket in tickets {
            let is_new = self.joined.lock().unwrap().insert(ticket.clone());
            if is_new && !self.are_steps_concurrent {
                assert_eq!(claimed.get(&ticket).map(String::as_str), Some(backfill), "{ticket}");
            }
        }
    }

    /// Checks the outcome of a match that updates this backfill.
    async fn assert_is_current(&self, process: &Tickets, backfill: &Backfill, outcome: &ClaimOutcome) {
        let is_current = self.generations.lock().unwrap().get(&backfill.id) == Some(&backfill.generation);
        if *outcome == ClaimOutcome::StaleBackfill && !is_current {
            self.count("stale generation refused");
        }
        if self.are_steps_concurrent {
            return;
        }
        match outcome {
            ClaimOutcome::Claimed(_) => assert!(is_current, "{backfill:?} is not the latest generation"),
            ClaimOutcome::StaleBackfill if is_current => {
                let id = BackfillId::parse(&backfill.id).unwrap();
                let status = process.backfill_status(&id).await.unwrap();
                assert!(
                    status.is_none_or(|status| status.is_expired),
                    "{backfill:?} is the latest generation"
                );
            }
            _ => {}
        }
    }

    fn some_tickets(&self, rng: &mut Rng) -> Vec<TicketId> {
        let created = *self.created.lock().unwrap();
        let oldest = created.saturating_sub(40);
        let chosen: BTreeSet<usize> =
            (0..rng.usize(1..4)).map(|_| rng.usize(oldest..created.max(1))).collect();
        chosen.into_iter().map(id).collect()
    }

    fn some_backfill(&self, rng: &mut Rng) -> Option<Backfill> {
        let backfills = self.backfills.lock().unwrap();
        let recent = &backfills[backfills.len().saturating_sub(6)..];
        rng.choice(recent).cloned()
    }

    fn know(&self, backfill: Backfill) {
        self.generations.lock().unwrap().insert(backfill.id.clone(), backfill.generation);
        let mut backfills = self.backfills.lock().unwrap();
        match backfills.iter_mut().find(|known| known.id == backfill.id) {
            Some(known) => *known = backfill,
            None => backfills.push(backfill),
        }
    }
}

async fn every_ticket_of_a_backfill_is_assigned_once_or_released(setup: Setup) {
    play(setup, 1).await;
}

async fn concurrent_steps_lose_and_double_no_ticket_of_a_backfill(setup: Setup) {
    play(setup, PROCESSES).await;
}

async fn play(setup: Setup, at_once: usize) {
    let seed = Seed::new();
    let rounds = if setup.is_slow() { ROUNDS / 5 } else { ROUNDS };
    // Claims have the precision of a second. Assignments must outlive the test.
    let setup = setup.with(|rules| {
        rules.pending_timeout = Duration::from_secs(2);
        rules.assigned_ttl = Duration::from_secs(3600);
    });
    let mut processes = vec![setup.open().await];
    for _ in 1..PROCESSES {
        processes.push(processes[0].elsewhere().await);
    }
    let world = World { are_steps_concurrent: at_once > 1, ..World::default() };
    let mut rng = seed.choices(0);
    for round in 0..rounds * PROCESSES / at_once {
        let steps = (0..at_once).map(|number| {
            let process = &processes[(round + number) % PROCESSES];
            let mut choices = Rng::with_seed(rng.u64(..));
            let world = &world;
            async move { step(process, world, &mut choices).await }
        });
        join_all(steps).await;
        if round % 10 == 0 {
            let passed = Duration::from_millis(rng.u64(50..400));
            processes[0].pass(passed);
            if processes[0].is_in_redis() && rng.u32(0..3) == 0 {
                tokio::time::sleep(passed).await;
            }
            check(&processes[0], &world).await;
        }
    }
    settle(&processes[0], &world).await;
    if rounds < ROUNDS {
        return;
    }
    let effects = world.effects.lock().unwrap().clone();
    for what in [
        "cancelled",
        "created by match",
        "updated by match",
        "acknowledged",
        "crashed",
        "updated",
        "deleted",
        "expired",
        "stale generation refused",
        "released by update",
        "assigned by engine",
    ] {
        assert!(effects.get(what).is_some_and(|count| *count > 0), "{what} never happened: {effects:?}");
    }
}

/// Does one thing that a process may do. A crash leaves a step half done.
async fn step(process: &Tickets, world: &World, rng: &mut Rng) {
    let backfills = process.frontend.backfills().clone().with_recorder(Arc::new(NoDatabase));
    match rng.u32(0..100) {
        0..15 => {
            let numbers = {
                let mut created = world.created.lock().unwrap();
                let first = *created;
                *created += 4;
                first..first + 4
            };
            process.create_all(numbers).await;
        }
        15..18 => world.know(backfills.create(Some(tagged("server"))).await.unwrap()),
        18..33 => {
            let tickets = world.some_tickets(rng);
            let (outcome, created) = try_claim(process, tagged("match"), tickets.clone()).await;
            if let ClaimOutcome::Claimed(_) = outcome {
                world.set_claimed(&tickets, &created.id);
                world.count("created by match");
                world.know(created);
            }
        }
        33..50 => {
            let Some(mut backfill) = world.some_backfill(rng) else { return };
            // Sometimes with the generation that the match function saw before another change.
            backfill.generation -= i64::from(rng.u32(0..5) == 0);
            let tickets = world.some_tickets(rng);
            let (outcome, mut updated) = try_claim(process, backfill.clone(), tickets.clone()).await;
            world.assert_is_current(process, &backfill, &outcome).await;
            if let ClaimOutcome::Claimed(_) = outcome {
                world.set_claimed(&tickets, &updated.id);
                world.count("updated by match");
                updated.generation += 1;
                world.know(updated);
            }
        }
        50..65 => {
            let Some(backfill) = world.some_backfill(rng) else { return };
            if let Ok(answer) = backfills.acknowledge(&backfill.id, server(&backfill.id)).await {
                world.count("acknowledged");
                let listed = answer.tickets.iter().map(|ticket| TicketId::parse(&ticket.id).unwrap());
                world.assert_were_in(&backfill.id, listed);
            }
        }
        65..73 => crash_while_acknowledging(process, world, rng).await,
        73..77 => {
            let Some(backfill) = world.some_backfill(rng) else { return };
            let id = BackfillId::parse(&backfill.id).unwrap();
            let waiting = process.backfill_status(&id).await.unwrap().map(|status| status.waiting);
            let Ok(updated) = backfills.update(Some(backfill)).await else { return };
            world.count("updated");
            world.know(updated);
            for ticket in waiting.unwrap_or_default() {
                world.count("released by update");
                let is_free = process.status(&ticket).await.unwrap().pending_since.is_none();
                assert!(is_free || world.are_steps_concurrent, "{ticket} waits for nobody");
            }
        }
        77..80 => {
            let Some(backfill) = world.some_backfill(rng) else { return };
            world.count("deleted");
            backfills.delete(&backfill.id).await.unwrap();
        }
        80..84 => {
            for ticket in world.some_tickets(rng) {
                if process.delete(&ticket).await.unwrap() == DeleteOutcome::Deleted {
                    world.count("cancelled");
                    world.cancelled.lock().unwrap().insert(ticket);
                }
            }
        }
        84..88 => {
            let doomed = world.some_backfill(rng).filter(|_| process.is_in_redis() && rng.bool());
            if let Some(doomed) = doomed {
                // As if its game server had not acknowledged it for a long time. In memory the clock is advanced.
                let acks = process.key("backfillAcks");
                process.raw().await.ask::<()>(&["ZADD", &acks, "XX", "1", &doomed.id]).await;
            }
            if process.expire_backfills().await.unwrap().backfills > 0 {
                world.count("expired");
            }
        }
        88..91 => {
            let tickets = world.some_tickets(rng);
            process.release(&tickets).await.unwrap();
            world.set_claimed(&tickets, "");
        }
        _ => engine(process, world, rng).await,
    }
}

/// Acknowledges as far as a process gets that dies in between.
async fn crash_while_acknowledging(process: &Tickets, world: &World, rng: &mut Rng) {
    let Some(backfill) = world.some_backfill(rng) else { return };
    let id = BackfillId::parse(&backfill.id).unwrap();
    let AcknowledgeOutcome::Acknowledged(found) = process.acknowledge_backfill(&id).await.unwrap() else {
        return;
    };
    if found.waiting.is_empty() || rng.bool() {
        return;
    }
    // Another process may act before this one goes on.
    tokio::task::yield_now().await;
    let (match_, assignment) = (group(&backfill.id, found.waiting.clone()), server(&backfill.id).unwrap());
    let assignment = assignment.encode_to_bytes();
    let assigned = process
        .assign_backfill(&id, &found.waiting, &Assignments::Shared(assignment.clone()), &match_.encoded_match)
        .await;
    if let AssignBackfillOutcome::Assigned(batch) = assigned.unwrap() {
        world.count("crashed");
        world.assert_were_in(&backfill.id, found.waiting);
        // In memory nothing survives a crash, so that only Redis has assigned tickets whose players were not notified.
        if !process.is_in_redis() || rng.bool() {
            process.notify(&[batch], AfterNotify::Keep).await.unwrap();
        }
    }
}

/// Makes a match as an engine or as a Director does.
async fn engine(process: &Tickets, world: &World, rng: &mut Rng) {
    let (tickets, claim) = if rng.bool() {
        let fetched = process.fetch(&"engine".into(), rng.usize(1..4)).await.unwrap();
        (fetched.ids, fetched.claim)
    } else {
        let tickets = world.some_tickets(rng);
        let request = ClaimRequest {
            number: None,
            holder: Holder::default(),
            tickets: tickets.clone(),
            backfill: None,
        };
        let ClaimOutcome::Claimed(claim) = process.claim(&[request]).await.unwrap().remove(0) else { return };
        (tickets, claim)
    };
    if tickets.is_empty() {
        return;
    }
    world.set_claimed(&tickets, "");
    match rng.u32(0..3) {
        0 => {
            let mut match_ = group("engine", tickets);
            match_.claim = Some(claim);
            process.assign(&[match_]).await.unwrap();
            world.count("assigned by engine");
        }
        1 => drop(process.release_claim(claim, &tickets).await.unwrap()),
        // It dies with the tickets.
        _ => {}
    }
}

/// Checks what must hold at any time. Returns the assigned tickets with their connections.
async fn check(process: &Tickets, world: &World) -> HashMap<TicketId, String> {
    let mut assigned = HashMap::new();
    for batch in process.entries().await {
        let made = proto::playhouse::MatchesMade::decode_from_slice(&batch.matches).unwrap().matches;
        assert_eq!(made.len(), matches(&batch.matches).len());
        for made in made {
            for ticket in &made.ticket_ids {
                let ticket = TicketId::parse(ticket).unwrap();
                let twice = assigned.insert(ticket, made.assignment.connection.clone());
                assert_eq!(twice, None, "a ticket is in two matches");
            }
        }
    }
    for ticket in world.cancelled.lock().unwrap().iter() {
        assert!(!assigned.contains_key(ticket), "{ticket} was cancelled and assigned");
    }
    let mut waiting = HashSet::new();
    let known = world.backfills.lock().unwrap().clone();
    for backfill in &known {
        let id = BackfillId::parse(&backfill.id).unwrap();
        let Some(status) = process.backfill_status(&id).await.unwrap() else { continue };
        if !world.are_steps_concurrent {
            let generation = world.generations.lock().unwrap()[&backfill.id];
            assert_eq!(status.data.generation, generation, "{id}");
        }
        for ticket in status.waiting {
            assert!(!assigned.contains_key(&ticket), "{ticket} is assigned and waits");
            assert!(waiting.insert(ticket), "a ticket is in two backfills");
        }
    }
    assigned
}

/// Lets every backfill expire, and accounts for every ticket.
async fn settle(process: &Tickets, world: &World) {
    process.pass(process.setup.rules.backfill_expiry());
    eventually("all backfills expire", PATIENCE, async || {
        process.expire_backfills().await.unwrap().left == 0
    })
    .await;
    let assigned = check(process, world).await;
    let cancelled = world.cancelled.lock().unwrap().clone();
    let created = *world.created.lock().unwrap();
    let rest: BTreeSet<TicketId> =
        (0..created).map(id).filter(|id| !assigned.contains_key(id) && !cancelled.contains(id)).collect();
    for (ticket, connection) in &assigned {
        assert_eq!(process.connection_of(ticket).await.as_ref(), Some(connection), "{ticket}");
    }
    // The claims of engines that died end by themselves.
    process.pass(process.setup.rules.pending_timeout * 2);
    let free = Mutex::new(BTreeSet::new());
    eventually("all other tickets are active again", PATIENCE, async || {
        let taken = process.take(10_000).await;
        let mut free = free.lock().unwrap();
        free.extend(taken);
        free.len() >= rest.len()
    })
    .await;
    assert_eq!(*free.lock().unwrap(), rest);
}

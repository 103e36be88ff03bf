//! Random interleavings of engines that begin and fill matches, game servers, players and crashes: no ticket is lost or in two
//! matches, each match has its backfill, and no place is taken twice.

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
    AcknowledgeOutcome, AfterNotify, AssignBackfillOutcome, AssignOutcome, AssignmentGroup, DeleteOutcome,
    OpenRoom, RoomJoin, RoomOutcome, UnrecordedBatch,
};
use testkit::{Seed, eventually};

use crate::backfills::server;
use crate::rooms::{room, seat};
use crate::setup::{PATIENCE, Setup, Tickets, group, id};

for_every_store! {
    every_ticket_has_one_match_and_every_place_one_ticket,
    concurrent_engines_take_no_place_and_no_ticket_twice,
}

const ROUNDS: usize = 150;
/// How many steps run at the same time, each in a process of its own.
const PROCESSES: usize = 3;
/// The places of team red beside those of the first tickets.
const OPEN: usize = 3;

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
    /// Each backfill with the number of its match's first tickets.
    backfills: Mutex<Vec<(BackfillId, usize)>>,
    cancelled: Mutex<HashSet<TicketId>>,
    /// How often each kind of step had an effect.
    effects: Mutex<HashMap<&'static str, usize>>,
}

impl World {
    fn count(&self, what: &'static str) {
        *self.effects.lock().unwrap().entry(what).or_default() += 1;
    }

    fn some_backfill(&self, rng: &mut Rng) -> Option<BackfillId> {
        let backfills = self.backfills.lock().unwrap();
        rng.choice(&backfills[backfills.len().saturating_sub(5)..]).map(|(id, _)| id.clone())
    }

    fn some_tickets(&self, rng: &mut Rng) -> Vec<TicketId> {
        let created = *self.created.lock().unwrap();
        let oldest = created.saturating_sub(30);
        (0..rng.usize(1..3)).map(|_| id(rng.usize(oldest..created.max(1)))).collect()
    }
}

async fn every_ticket_has_one_match_and_every_place_one_ticket(setup: Setup) {
    play(setup, 1).await;
}

async fn concurrent_engines_take_no_place_and_no_ticket_twice(setup: Setup) {
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
    let (world, mut rng) = (World::default(), seed.choices(0));
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
    assert!(at_once == 1 || effects.contains_key("not joined"), "{effects:?}");
    for what in ["begun", "refused", "joined", "died", "acknowledged", "died acknowledging", "cancelled"] {
        assert!(effects.get(what).is_some_and(|count| *count > 0), "{what} never happened: {effects:?}");
    }
}

/// Does one thing that a process may do. A crash leaves a step half done.
async fn step(process: &Tickets, world: &World, rng: &mut Rng) {
    let backfills = process.frontend.backfills().clone().with_recorder(Arc::new(NoDatabase));
    match rng.u32(0..100) {
        0..20 => {
            let numbers = {
                let mut created = world.created.lock().unwrap();
                let first = *created;
                *created += 4;
                first..first + 4
            };
            process.create_all(numbers).await;
        }
        20..35 => begin(process, world, rng).await,
        35..60 => fill(process, world, rng).await,
        60..75 => {
            let Some(backfill) = world.some_backfill(rng) else { return };
            if backfills.acknowledge(backfill.as_str(), server(backfill.as_str())).await.is_ok() {
                world.count("acknowledged");
            }
        }
        75..82 => die_acknowledging(process, world, rng).await,
        82..90 => {
            for ticket in world.some_tickets(rng) {
                if process.delete(&ticket).await.unwrap() == DeleteOutcome::Deleted {
                    world.count("cancelled");
                    world.cancelled.lock().unwrap().insert(ticket);
                }
            }
        }
        90..93 => process.release(&world.some_tickets(rng)).await.unwrap(),
        93..95 => {
            let Some(backfill) = world.some_backfill(rng) else { return };
            backfills.delete(backfill.as_str()).await.unwrap();
        }
        95..97 => {
            let Some(backfill) = world.some_backfill(rng) else { return };
            let own = proto::openmatch::Backfill { id: backfill.to_string(), ..Default::default() };
            drop(backfills.update(Some(own)).await);
        }
        _ => drop(process.expire_backfills().await.unwrap()),
    }
}

/// Makes a match with room of what an engine fetches.
async fn begin(process: &Tickets, world: &World, rng: &mut Rng) {
    let fetched = process.fetch(&"engine".into(), 2).await.unwrap();
    if fetched.ids.is_empty() {
        return;
    }
    let mut tickets = fetched.ids.clone();
    if rng.u32(0..5) == 0 {
        // It was cancelled meanwhile, or is somebody else's.
        tickets.extend(world.some_tickets(rng).into_iter().find(|id| !fetched.ids.contains(id)));
    }
    let new = room(&tickets, OPEN);
    let (backfill, members) = (new.id.clone(), tickets.len());
    let match_ = AssignmentGroup {
        claim: Some(fetched.claim),
        room: Some(new),
        ..group(&format!("first of {backfill}"), tickets)
    };
    let outcome = process.assign(&[match_]).await.unwrap().remove(0);
    // Others do not know it yet.
    let exists = process.backfill_status(&backfill).await.unwrap().is_some();
    assert_eq!(exists, outcome == AssignOutcome::Assigned, "both or neither: {outcome:?}");
    if exists {
        world.count("begun");
        world.backfills.lock().unwrap().push((backfill, members));
    } else {
        world.count("refused");
        process.release_claim(fetched.claim, &fetched.ids).await.unwrap();
    }
}

/// Lets what an engine fetches join a match, now and then one that another engine fills meanwhile.
async fn fill(process: &Tickets, world: &World, rng: &mut Rng) {
    let Some(backfill) = world.some_backfill(rng) else { return };
    let Some(read) = process.open_rooms(std::slice::from_ref(&backfill)).await.unwrap().pop() else { return };
    if rng.u32(0..5) == 0
        && let Some(read) = process.open_rooms(std::slice::from_ref(&backfill)).await.unwrap().pop()
    {
        fill_as_read(process, world, rng, read).await;
    }
    fill_as_read(process, world, rng, read).await;
}

async fn fill_as_read(process: &Tickets, world: &World, rng: &mut Rng, read: OpenRoom) {
    let OpenRoom { id: backfill, generation, room, .. } = read;
    let fetched = process.fetch(&"engine".into(), rng.usize(1..4)).await.unwrap();
    let open = room.teams[0].open;
    if fetched.ids.is_empty() {
        return;
    }
    if rng.u32(0..6) == 0 {
        world.count("died");
        return;
    }
    tokio::task::yield_now().await;
    let joining: Vec<TicketId> = fetched.ids.iter().take(open).cloned().collect();
    let rest: Vec<TicketId> = fetched.ids.iter().skip(open).cloned().collect();
    let seats = joining.iter().map(|id| (id.clone(), seat("red", 1))).collect();
    let join = RoomJoin { id: backfill, generation, claim: fetched.claim, seats };
    match process.join_rooms(&[join]).await.unwrap().remove(0) {
        RoomOutcome::Joined => {
            world.count("joined");
            // It does not know that they have joined, as after a lost reply.
            if rng.u32(0..4) == 0 {
                process.release_claim(fetched.claim, &joining).await.unwrap();
            }
        }
        _ => {
            world.count("not joined");
            process.release_claim(fetched.claim, &joining).await.unwrap();
        }
    }
    process.release_claim(fetched.claim, &rest).await.unwrap();
}

/// Acknowledges as far as a process gets that dies in between.
async fn die_acknowledging(process: &Tickets, world: &World, rng: &mut Rng) {
    let Some(backfill) = world.some_backfill(rng) else { return };
    let AcknowledgeOutcome::Acknowledged(found) = process.acknowledge_backfill(&backfill).await.unwrap()
    else {
        return;
    };
    if found.waiting.is_empty() || rng.bool() {
        return;
    }
    assert_eq!(found.seats.keys().collect::<Vec<_>>(), found.waiting.iter().collect::<Vec<_>>());
    tokio::task::yield_now().await;
    let match_ = group(backfill.as_str(), found.waiting.clone());
    let assigned =
        process.assign_backfill(&backfill, &found.waiting, &match_.assignments, &match_.encoded_match).await;
    if let AssignBackfillOutcome::Assigned(batch) = assigned.unwrap() {
        world.count("died acknowledging");
        // In memory nothing survives a crash, so that only Redis has assigned tickets whose players were not notified.
        if !process.is_in_redis() || rng.bool() {
            process.notify(&[batch], AfterNotify::Keep).await.unwrap();
        }
    }
}

/// Checks what must hold at any time. Returns the assigned tickets with their connections.
async fn check(process: &Tickets, world: &World) -> HashMap<TicketId, String> {
    let known = world.backfills.lock().unwrap().clone();
    let ids: Vec<BackfillId> = known.iter().map(|(id, _)| id.clone()).collect();
    let rooms = process.open_rooms(&ids).await.unwrap();
    let mut assigned = HashMap::new();
    for batch in process.entries().await {
        for made in proto::playhouse::MatchesMade::decode_from_slice(&batch.matches).unwrap().matches {
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
    let mut seated = HashSet::new();
    for OpenRoom { id, room, seats, .. } in rooms {
        let members = known.iter().find(|(known, _)| *known == id).unwrap().1;
        assert_eq!(room.teams[0].open + seats.len(), members + OPEN, "{id}: {seats:?}");
        for ticket in seats.into_keys() {
            if let Some(connection) = assigned.get(&ticket) {
                assert!(
                    *connection == id.as_str() || *connection == format!("first of {id}"),
                    "{connection}"
                );
            }
            assert!(seated.insert(ticket), "a ticket has two seats");
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
    let mut joined: HashMap<&str, usize> = HashMap::new();
    for connection in assigned.values() {
        *joined.entry(connection).or_default() += 1;
    }
    for (backfill, members) in world.backfills.lock().unwrap().iter() {
        assert_eq!(joined.get(&*format!("first of {backfill}")), Some(members));
        assert!(joined.get(backfill.as_str()).is_none_or(|joined| *joined <= OPEN), "{backfill} is overfull");
    }
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

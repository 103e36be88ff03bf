//! Random interleavings of engines, answers, cancellations, expiry and crashes: every ticket ends once, nobody is in two
//! matches, and a player who accepted keeps the place in the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures::future::join_all;
use matchmaking::model::{Moment, ReadyCheckId, TicketId};
use matchmaking::store::{
    AnswerOutcome, AssignOutcome, DeleteOutcome, NewReadyCheck, OpenOutcome, ReadyAnswer,
};
use matchmaking::{Players, Queue};
use testkit::{Seed, eventually};

use crate::setup::{PATIENCE, Setup, Tickets, group, matches, to, user};

for_every_store! {
    every_ticket_of_a_ready_check_ends_once,
    concurrent_steps_lose_and_double_no_ticket_of_a_ready_check,
}

const ROUNDS: usize = 200;
/// What must happen at least once.
const EFFECTS: [&str; 9] =
    ["opened", "accepted", "declined", "cancelled", "released", "taken", "made", "crashed", "not made"];
/// How many steps run at the same time, each in a process of its own.
const PROCESSES: usize = 3;

struct Process {
    tickets: Tickets,
    players: Players,
}

#[derive(Default)]
struct World {
    /// All tickets in their order. Player `n` has ticket `n`.
    created: Mutex<Vec<TicketId>>,
    /// Tickets that expire during the test.
    brief: Mutex<HashSet<TicketId>>,
    /// Tickets that were cancelled, or whose player declined.
    cancelled: Mutex<HashSet<TicketId>>,
    /// The tickets of each check that was opened.
    checks: Mutex<BTreeMap<ReadyCheckId, Vec<TicketId>>>,
    /// The tickets whose players have sent an acceptance.
    tried: Mutex<HashSet<TicketId>>,
    /// The acceptances that counted. Only complete if steps do not overlap.
    accepted: Mutex<HashSet<(ReadyCheckId, TicketId)>>,
    are_steps_concurrent: bool,
    /// How often each kind of step had an effect.
    effects: Mutex<HashMap<&'static str, usize>>,
}

impl World {
    fn count(&self, what: &'static str) {
        *self.effects.lock().unwrap().entry(what).or_default() += 1;
    }

    /// Returns one of the youngest tickets, with the number of its player.
    fn some_ticket(&self, rng: &mut Rng) -> Option<(u128, TicketId)> {
        let created = self.created.lock().unwrap();
        let number = rng.usize(created.len().saturating_sub(30)..created.len().max(1));
        Some((number as u128, created.get(number)?.clone()))
    }

    fn number(&self, id: &TicketId) -> u128 {
        self.created.lock().unwrap().iter().position(|known| known == id).unwrap() as u128
    }

    /// Returns whether all players of a check have accepted.
    fn have_all_accepted(&self, check: &ReadyCheckId, tickets: &[TicketId]) -> bool {
        let (tried, accepted) = (self.tried.lock().unwrap(), self.accepted.lock().unwrap());
        let has_accepted = |id: &TicketId| accepted.contains(&(check.clone(), id.clone()));
        tickets.iter().all(|id| if self.are_steps_concurrent { tried.contains(id) } else { has_accepted(id) })
    }

    /// Returns whether a ticket was in a check that its player did not accept.
    fn was_silent(&self, ticket: &TicketId) -> bool {
        let accepted = self.accepted.lock().unwrap();
        let is_silent = |check: &ReadyCheckId| !accepted.contains(&(check.clone(), ticket.clone()));
        let checks = self.checks.lock().unwrap();
        checks.iter().any(|(check, tickets)| tickets.contains(ticket) && is_silent(check))
    }
}

async fn every_ticket_of_a_ready_check_ends_once(setup: Setup) {
    play(setup, 1).await;
}

async fn concurrent_steps_lose_and_double_no_ticket_of_a_ready_check(setup: Setup) {
    play(setup, PROCESSES).await;
}

async fn play(setup: Setup, at_once: usize) {
    let seed = Seed::new();
    let rounds = if setup.is_slow() { ROUNDS / 5 } else { ROUNDS };
    let setup = setup.with(|rules| {
        rules.pending_timeout = Duration::from_secs(2);
        rules.assigned_ttl = Duration::from_secs(3600);
    });
    let first = setup.open().await;
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let tickets = first.elsewhere().await;
        let brief = Queue { ticket_ttl: Some(Duration::from_secs(2)), ..Queue::default() };
        let players = tickets.players([("duel", Queue::default()), ("brief", brief)]);
        processes.push(Process { tickets, players });
    }
    let world = World { are_steps_concurrent: at_once > 1, ..World::default() };
    let mut rng = seed.choices(0);
    let enough = rounds * PROCESSES / at_once;
    // Rare effects may need more rounds.
    let most = if rounds < ROUNDS { enough } else { 10 * enough };
    let missing = || {
        let effects = world.effects.lock().unwrap();
        EFFECTS.into_iter().filter(|what| !effects.contains_key(*what)).collect::<Vec<_>>()
    };
    for round in 0..most {
        if round >= enough && missing().is_empty() {
            break;
        }
        let steps = (0..at_once).map(|number| {
            let process = &processes[(round + number) % PROCESSES];
            let mut choices = Rng::with_seed(rng.u64(..));
            let world = &world;
            async move { step(process, world, &mut choices).await }
        });
        join_all(steps).await;
        if round % 10 == 0 {
            let passed = Duration::from_millis(rng.u64(20..200));
            first.pass(passed);
            if first.is_in_redis() && rng.bool() {
                tokio::time::sleep(passed).await;
            }
            check(&first, &world).await;
        }
    }
    settle(&processes[0], &world).await;
    if rounds < ROUNDS {
        return;
    }
    assert!(missing().is_empty(), "{:?} never happened", missing());
}

/// Does one thing that a process may do. A crash leaves a step half done.
async fn step(process: &Process, world: &World, rng: &mut Rng) {
    let tickets = &process.tickets;
    match rng.u32(0..100) {
        0..15 => join(process, world, rng).await,
        15..35 => open(tickets, world, rng).await,
        35..75 => answer(tickets, world, rng).await,
        75..78 => {
            let Some((_, id)) = world.some_ticket(rng) else { return };
            if tickets.delete(&id).await.unwrap() == DeleteOutcome::Deleted {
                world.cancelled.lock().unwrap().insert(id);
                world.count("cancelled");
            }
        }
        78..80 => {
            let Some((_, id)) = world.some_ticket(rng) else { return };
            tickets.release(&[id]).await.unwrap();
            world.count("released");
        }
        _ => settle_due(tickets, world, rng).await,
    }
}

async fn join(process: &Process, world: &World, rng: &mut Rng) {
    for _ in 0..rng.usize(1..4) {
        let number = {
            let mut created = world.created.lock().unwrap();
            // A place for the ticket, so that no other step takes the number.
            created.push(TicketId::generate(Moment::default()));
            created.len() - 1
        };
        let queue = if rng.u32(0..8) == 0 { "brief" } else { "duel" };
        let ticket = process.players.join(user(number as u128), to(queue)).await.unwrap().ticket;
        world.created.lock().unwrap()[number] = ticket.id.clone();
        if queue == "brief" {
            world.brief.lock().unwrap().insert(ticket.id);
        }
    }
}

/// Fetches tickets and opens a check of some. It may die before it releases the others.
async fn open(tickets: &Tickets, world: &World, rng: &mut Rng) {
    let fetched = tickets.fetch(&"engine".into(), 8).await.unwrap();
    let count = rng.usize(1..4).min(fetched.ids.len());
    if count == 0 {
        return;
    }
    // A ticket whose number is not known yet has just been created by a concurrent step.
    let known: HashSet<TicketId> = world.created.lock().unwrap().iter().cloned().collect();
    let chosen = fetched.ids[..count].iter().filter(|id| known.contains(*id));
    let chosen: Vec<TicketId> = chosen.cloned().collect();
    if !chosen.is_empty() {
        let id = ReadyCheckId::generate(Moment::from(tickets.clock.now()));
        let members = chosen.iter().map(|id| (id.clone(), vec![user(world.number(id))])).collect();
        let time = Duration::from_millis(rng.u64(50..1000));
        let encoded_match = Bytes::from(chosen.len().to_string());
        world.checks.lock().unwrap().insert(id.clone(), chosen);
        let check = NewReadyCheck { id, claim: fetched.claim, tickets: members, time, encoded_match };
        if tickets.open_ready_checks(&[check]).await.unwrap() == [OpenOutcome::Opened] {
            world.count("opened");
        }
    }
    if rng.u32(0..10) > 0 {
        tickets.release_claim(fetched.claim, &fetched.ids).await.unwrap();
    }
}

/// Lets some players of a check answer.
async fn answer(tickets: &Tickets, world: &World, rng: &mut Rng) {
    let members = world.checks.lock().unwrap().values().nth_back(rng.usize(0..4)).cloned();
    for ticket in members.into_iter().flatten() {
        if rng.u32(0..5) > 0 {
            answer_one(tickets, world, ticket, rng).await;
        }
    }
}

async fn answer_one(tickets: &Tickets, world: &World, ticket: TicketId, rng: &mut Rng) {
    let player = user(world.number(&ticket));
    if rng.u32(0..20) == 0 {
        match tickets.answer_ready_check(&ticket, player, ReadyAnswer::Decline).await.unwrap() {
            AnswerOutcome::Left => {
                world.cancelled.lock().unwrap().insert(ticket);
                world.count("declined");
            }
            AnswerOutcome::NoCheck => {}
            other => panic!("{other:?}"),
        }
        return;
    }
    world.tried.lock().unwrap().insert(ticket.clone());
    match tickets.answer_ready_check(&ticket, player, ReadyAnswer::Accept).await.unwrap() {
        AnswerOutcome::Open(open) => {
            assert!(open.answers.contains(&(player, true)), "{open:?}");
            // It may be in a later check by now: then the answer counts there.
            world.accepted.lock().unwrap().insert((open.id, ticket));
            world.count("accepted");
        }
        AnswerOutcome::NoCheck | AnswerOutcome::Assigned => {}
        AnswerOutcome::Left => panic!("an acceptance declined"),
    }
}

/// Takes accepted matches and makes them, or fails, or dies.
async fn settle_due(tickets: &Tickets, world: &World, rng: &mut Rng) {
    let due = tickets.due_ready_checks(10).await.unwrap();
    for accepted in due.accepted {
        world.count("taken");
        assert_eq!(accepted.encoded_match, accepted.tickets.len().to_string());
        let members = world.checks.lock().unwrap()[&accepted.id].clone();
        assert_eq!(accepted.tickets, members);
        assert!(world.have_all_accepted(&accepted.id, &members), "{} was not accepted", accepted.id);
        match rng.u32(0..10) {
            0..6 => {
                let name = format!("{} {}", accepted.id, accepted.times_taken);
                let mut made = group(&name, members);
                made.claim = Some(due.claim);
                if tickets.assign(&[made]).await.unwrap() == [AssignOutcome::Assigned] {
                    world.count("made");
                }
            }
            6..8 => world.count("not made"),
            _ => {
                world.count("crashed");
                continue;
            }
        }
        if rng.u32(0..5) > 0 {
            tickets.close_ready_checks(due.claim, &[accepted.id]).await.unwrap();
        }
    }
}

/// Checks what must hold at any time. Returns the assigned tickets with their matches.
async fn check(tickets: &Tickets, world: &World) -> HashMap<TicketId, String> {
    let (mut assigned, mut made_of) = (HashMap::new(), HashSet::new());
    for batch in tickets.entries().await {
        for (name, members) in matches(&batch.matches) {
            let check = name.split(' ').next().unwrap().to_owned();
            assert!(made_of.insert(check.clone()), "the match of check {check} was made twice");
            for ticket in members {
                let twice = assigned.insert(ticket, name.clone());
                assert_eq!(twice, None, "a ticket is in two matches");
            }
        }
    }
    for ticket in world.cancelled.lock().unwrap().iter() {
        assert!(!assigned.contains_key(ticket), "{ticket} was cancelled and assigned");
    }
    assigned
}

/// Lets every check end, and accounts for every ticket.
async fn settle(process: &Process, world: &World) {
    let tickets = &process.tickets;
    eventually("all checks end", PATIENCE, async || {
        tickets.pass(Duration::from_millis(500));
        let due = tickets.due_ready_checks(100).await.unwrap();
        let taken: Vec<ReadyCheckId> = due.accepted.iter().map(|accepted| accepted.id.clone()).collect();
        tickets.close_ready_checks(due.claim, &taken).await.unwrap();
        tickets.due_ready_checks(100).await.unwrap().open == 0
    })
    .await;
    let assigned = check(tickets, world).await;
    let created = world.created.lock().unwrap().clone();
    let (cancelled, brief) = (world.cancelled.lock().unwrap().clone(), world.brief.lock().unwrap().clone());
    let mut rest = BTreeSet::new();
    for (place, id) in created.iter().enumerate() {
        let exists = tickets.find(id).await.unwrap().data.is_some();
        if let Some(name) = assigned.get(id) {
            assert_eq!(tickets.connection_of(id).await.as_ref(), Some(name), "{id}");
        } else if cancelled.contains(id) {
            assert!(!exists, "{id} was cancelled and exists");
        } else if exists {
            rest.insert(place);
        } else {
            assert!(brief.contains(id) || world.was_silent(id), "{id} is lost");
        }
    }
    // The claims of engines that died end by themselves.
    tickets.pass(tickets.setup.rules.pending_timeout * 2);
    let expected: Vec<TicketId> = rest.iter().map(|place| created[*place].clone()).collect();
    let expected: Vec<TicketId> = expected.into_iter().filter(|id| !brief.contains(id)).collect();
    eventually("all other tickets are active again, in their order", PATIENCE, async || {
        let mut taken = tickets.take(10_000).await;
        tickets.release(&taken).await.unwrap();
        taken.retain(|id| !brief.contains(id));
        // The tickets of concurrent processes may have been created in another order than their numbers.
        let order = |ids: &[TicketId]| ids.iter().cloned().collect::<BTreeSet<_>>();
        assert!(order(&taken).is_subset(&order(&expected)), "{taken:?} instead of {expected:?}");
        let all = tickets.all().await;
        let places = taken.iter().map(|id| all.iter().position(|known| known == id));
        assert!(places.is_sorted(), "{taken:?} are not in the order of {all:?}");
        taken.len() == expected.len()
    })
    .await;
}

//! Joining a queue: a player gets one ticket, whatever happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::Code;
use base::error::Coded;
use base::id::Uuid;
use buffa::Message;
use buffa_types::google::protobuf::StringValue;
use futures::future::join_all;
use matchmaking::store::AssignOutcome;
use matchmaking::{Error, JoinRequest, PlayerState, PlayerTicket, Players, Queue};
use proto::openmatch;
use testkit::{Redis, Seed, eventually, need};
use tokio::sync::Notify;

use crate::setup::{PATIENCE, Setup, Tickets, group, to, user};

for_every_store! {
    a_hundred_concurrent_joins_create_one_ticket,
    player_waits_in_one_queue,
    player_waits_in_several_queues_if_all_allow_it,
    joining_after_a_match_returns_it_unless_replaced,
    unfinished_ticket_cannot_be_replaced,
    cancelled_ticket_allows_a_new_one,
    expired_ticket_allows_a_new_one,
    deindexed_ticket_allows_a_new_one,
    player_never_waits_twice_under_concurrency,
    new_ticket_wakes_an_engine,
}

async fn join(players: &Players, number: u128, queue: &str) -> PlayerTicket {
    players.join(user(number), to(queue)).await.unwrap().ticket
}

fn allow_other_queues() -> Queue {
    Queue { allow_other_queues: true, ..Queue::default() }
}

async fn a_hundred_concurrent_joins_create_one_ticket(setup: Setup) {
    let tickets = setup.open().await;
    let processes = [tickets.clone(), tickets.elsewhere().await, tickets.elsewhere().await];
    let players = processes.each_ref().map(|tickets| tickets.players([("duel", Queue::default())]));
    for round in 0..3 {
        let joining = (0..100).map(|number| {
            let players = players[number % players.len()].clone();
            tokio::spawn(async move { players.join(user(round), to("duel")).await.unwrap() })
        });
        let joined: Vec<_> = join_all(joining).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(joined.iter().filter(|joined| joined.is_new).count(), 1);
        let ticket = &joined[0].ticket;
        assert!(joined.iter().all(|joined| joined.ticket == *ticket), "{joined:?}");
        assert_eq!(ticket.state, PlayerState::Waiting);
        assert_eq!(tickets.all().await.last(), Some(&ticket.id));
        assert_eq!(tickets.all().await.len() as u128, round + 1);
    }
}

async fn player_waits_in_one_queue(setup: Setup) {
    let tickets = setup.open().await;
    // One of them does not allow it, whichever is first.
    let queues =
        || [("duel", Queue::default()), ("ranked", allow_other_queues()), ("casual", Queue::default())];
    let players = tickets.players(queues());
    for (number, first, others) in [(0, "duel", ["ranked", "casual"]), (1, "ranked", ["duel", "casual"])] {
        let ticket = join(&players, number, first).await;
        for other in others {
            let elsewhere = tickets.elsewhere().await.players(queues());
            let error = elsewhere.join(user(number), to(other)).await.unwrap_err();
            assert_eq!(error.code(), Code::Conflict);
            let Error::OtherQueue { queue, ticket: id } = error else { panic!("{error:?}") };
            assert_eq!((queue.as_str(), &id), (first, &ticket.id));
        }
        assert_eq!(players.tickets(user(number)).await.unwrap(), std::slice::from_ref(&ticket));
    }
    assert_eq!(tickets.all().await.len(), 2);
    // A player who left, or has a match, waits in no queue.
    let [left, played] = [0, 1].map(user);
    let id = players.tickets(left).await.unwrap().remove(0).id;
    players.leave(left, id.as_str()).await.unwrap();
    assert!(players.join(left, to("casual")).await.unwrap().is_new);
    let ticket = players.tickets(played).await.unwrap().remove(0);
    tickets.play("match", &[&ticket]).await;
    assert!(players.join(played, to("casual")).await.unwrap().is_new);
    assert_eq!(players.tickets(played).await.unwrap().len(), 2, "the match can be read still");
}

async fn player_waits_in_several_queues_if_all_allow_it(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([
        ("a", allow_other_queues()),
        ("b", allow_other_queues()),
        ("alone", Queue::default()),
    ]);
    let both = [join(&players, 0, "a").await, join(&players, 0, "b").await];
    assert_ne!(both[0].id, both[1].id);
    assert_eq!(both.each_ref().map(|ticket| ticket.queue.as_str()), ["a", "b"]);
    for _ in 0..2 {
        for ticket in &both {
            assert_eq!(join(&players, 0, &ticket.queue).await, *ticket, "one in each");
        }
    }
    players.join(user(0), to("alone")).await.unwrap_err();
    assert_eq!(players.tickets(user(0)).await.unwrap(), both, "the oldest first");
}

async fn joining_after_a_match_returns_it_unless_replaced(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let elsewhere = tickets.elsewhere().await.players([("duel", Queue::default())]);
    let first = join(&players, 0, "duel").await;
    tickets.play("one", &[&first]).await;
    for players in [&players, &elsewhere] {
        let joined = players.join(user(0), to("duel")).await.unwrap();
        assert!(!joined.is_new);
        assert_eq!((&joined.ticket.id, joined.ticket.state), (&first.id, PlayerState::Assigned));
        assert_eq!(joined.ticket.assignment.unwrap().connection, "one");
    }
    let after = |ticket: &PlayerTicket| JoinRequest { replaces: Some(ticket.id.clone()), ..to("duel") };
    let second = players.join(user(0), after(&first)).await.unwrap();
    assert!(second.is_new);
    assert_ne!(second.ticket.id, first.id);
    for players in [&players, &elsewhere] {
        let again = players.join(user(0), after(&first)).await.unwrap();
        assert_eq!((again.is_new, &again.ticket), (false, &second.ticket), "a retry");
    }
    assert_eq!(tickets.all().await.len(), 1);
    // Also after it has been assigned in turn, while the first one can still be read.
    tickets.play("two", &[&second.ticket]).await;
    let again = players.join(user(0), after(&first)).await.unwrap().ticket;
    assert_eq!(again.assignment.unwrap().connection, "two");
    let third = players.join(user(0), after(&second.ticket)).await.unwrap();
    assert!(third.is_new);
    assert_eq!(players.tickets(user(0)).await.unwrap(), [third.ticket], "what was replaced is done with");
}

async fn unfinished_ticket_cannot_be_replaced(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let (mine, other) = (join(&players, 0, "duel").await, join(&players, 1, "duel").await);
    let after = |ticket: &PlayerTicket| JoinRequest { replaces: Some(ticket.id.clone()), ..to("duel") };
    assert_eq!(players.join(user(0), after(&mine)).await.unwrap().ticket, mine, "it waits");
    tickets.play("match", &[&mine, &other]).await;
    let joined = players.join(user(0), after(&other)).await.unwrap();
    assert_eq!((joined.is_new, joined.ticket.id), (false, mine.id), "that was somebody else's");
}

async fn cancelled_ticket_allows_a_new_one(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let first = join(&players, 0, "duel").await;
    players.leave(user(0), first.id.as_str()).await.unwrap();
    assert_eq!(players.tickets(user(0)).await.unwrap(), []);
    let second = players.join(user(0), to("duel")).await.unwrap();
    assert!(second.is_new);
    assert_ne!(second.ticket.id, first.id);
    // Cancelled by an operator or an Open Match client has the same effect.
    tickets.delete(&second.ticket.id).await.unwrap();
    assert!(players.join(user(0), to("duel")).await.unwrap().is_new);
    assert_eq!(tickets.all().await.len(), 1);
}

async fn expired_ticket_allows_a_new_one(setup: Setup) {
    let tickets = setup.with(|rules| rules.assigned_ttl = Duration::from_millis(300)).open().await;
    let ttl = Duration::from_millis(300);
    let players = tickets.players([("duel", Queue { ticket_ttl: Some(ttl), ..Queue::default() })]);
    let expired = async |first: PlayerTicket| {
        let before = tickets.clock.now();
        let next = eventually("there is another ticket", PATIENCE, async || {
            tickets.pass(Duration::from_millis(20));
            let joined = players.join(user(0), to("duel")).await.unwrap();
            assert_eq!(joined.is_new, joined.ticket.id != first.id);
            joined.is_new.then_some(joined.ticket)
        });
        (next.await, tickets.clock.now().distance(before))
    };
    let first = join(&players, 0, "duel").await;
    assert_eq!(first.expires_at, Some(first.created_at.after(ttl)));
    let second = expired(first).await.0;
    // An assigned ticket: once it can no longer be read.
    tickets.play("match", &[&second]).await;
    let (third, read) = expired(second).await;
    assert!(read >= Duration::from_millis(200), "{read:?}");
    assert_eq!(third.state, PlayerState::Waiting);
}

async fn deindexed_ticket_allows_a_new_one(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let first = join(&players, 0, "duel").await;
    tickets.deindex(&first.id).await.unwrap();
    assert_eq!(players.tickets(user(0)).await.unwrap(), []);
    let second = join(&players, 0, "duel").await;
    assert_ne!(second.id, first.id);
    assert_eq!(join(&players, 0, "duel").await, second);
    assert_eq!(tickets.all().await, [second.id]);
}

/// Returns the owner of a stored ticket.
async fn owner(tickets: &Tickets, id: &matchmaking::model::TicketId) -> Option<Uuid> {
    let ticket = openmatch::Ticket::decode_from_slice(&tickets.find(id).await.unwrap().data?).unwrap();
    let owner = &ticket.persistent_field[matchmaking::USER_FIELD];
    Some(StringValue::decode_from_slice(&owner.value).unwrap().value.parse().unwrap())
}

async fn player_never_waits_twice_under_concurrency(setup: Setup) {
    const PLAYERS: u128 = 3;
    let tickets = setup.open().await;
    let queues = || [("a", Queue::default()), ("b", Queue::default())];
    let seed = Seed::new();
    let devices = (0..9).map(async |device: u128| {
        let mut choices = seed.choices(device as u64);
        let tickets = tickets.elsewhere().await;
        let (players, user) = (tickets.players(queues()), user(device % PLAYERS));
        let mut made = 0;
        for _ in 0..25 {
            let queue = choices.choice(["a", "b"]).unwrap();
            let replaces = players.tickets(user).await.unwrap().pop().map(|ticket| ticket.id);
            let joined = match players.join(user, JoinRequest { replaces, ..to(queue) }).await {
                Ok(joined) => joined,
                Err(Error::OtherQueue { .. }) => continue,
                Err(error) => panic!("{error:?}"),
            };
            made += usize::from(joined.is_new);
            let id = joined.ticket.id;
            match choices.u8(..3) {
                0 => drop(players.leave(user, id.as_str()).await),
                1 => {
                    let outcome = tickets.assign(&[group("match", vec![id.clone()])]).await.unwrap();
                    assert!(matches!(&outcome[..], [AssignOutcome::Assigned | AssignOutcome::Refused(_)]));
                }
                _ => {}
            }
            // The tickets that wait at this moment.
            let mut owners = HashMap::new();
            let (waiting, _) = tickets.list(100).await.unwrap();
            for id in waiting {
                if let Some(owner) = owner(&tickets, &id).await {
                    owners.entry(owner).or_insert_with(Vec::new).push(id);
                }
            }
            // Reading takes a while: tickets may have changed since they were listed.
            for waiting in owners.into_values().filter(|waiting| waiting.len() > 1) {
                let (listed, _) = tickets.list(100).await.unwrap();
                let still = waiting.iter().filter(|id| listed.contains(id)).count();
                assert!(still <= 1, "{waiting:?}");
            }
        }
        made
    });
    let made: usize = join_all(devices).await.into_iter().sum();
    assert!(made > 3, "{made}");
}

async fn new_ticket_wakes_an_engine(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let (process, wake) = (tickets.clone(), Arc::new(Notify::new()));
    let woken = wake.clone();
    tokio::spawn(async move { process.listen_for_wakes(&"engine".into(), &woken).await });
    if tickets.is_in_redis() {
        tokio::time::timeout(PATIENCE, wake.notified()).await.expect("it listens");
    }
    assert_eq!(tickets.take(10).await, []);
    let ticket = join(&players, 0, "duel").await;
    tokio::time::timeout(PATIENCE, wake.notified()).await.expect("it is woken");
    assert_eq!(tickets.take(10).await, [ticket.id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn join_with_a_lost_reply_finds_the_created_ticket() {
    let redis = need!(Redis::private().await);
    let tickets = Setup::script(&redis).open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let mut raw = tickets.raw().await;
    for number in 0..10 {
        let mut join = async || {
            raw.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
            players.join(user(number), to("duel")).await.unwrap()
        };
        let (first, again) = (join().await, join().await);
        assert!(first.is_new && !again.is_new);
        assert_eq!(again.ticket, first.ticket);
    }
}

#[tokio::test]
async fn player_data_is_in_two_keys_that_expire() {
    let redis = need!(Redis::shared().await);
    for tickets in [Setup::script(redis).open().await, Setup::lock(redis).open().await] {
        let gone = Queue {
            cancel_when_gone: Some(Duration::from_secs(30)),
            ticket_ttl: Some(Duration::from_secs(100)),
            ..allow_other_queues()
        };
        let players = tickets.players([("duel", gone), ("casual", allow_other_queues())]);
        let ticket = join(&players, 0, "duel").await;
        let player = format!("player:{}", user(0));
        let keys = ["allTickets", player.as_str(), "presence", "ticketQueue"];
        let mut expected: Vec<&str> = [&keys[..], &[ticket.id.as_str()]].concat();
        expected.sort_unstable();
        assert_eq!(tickets.keys().await, expected);
        let mut raw = tickets.raw().await;
        let listed: HashMap<String, String> = raw.ask(&["HGETALL", &tickets.key(&player)]).await;
        assert_eq!(listed, HashMap::from([(ticket.id.to_string(), "duel".to_owned())]));
        let (seconds, _): (f64, u64) = raw.ask(&["TIME"]).await;
        let due: f64 = raw.ask(&["ZSCORE", &tickets.key("presence"), ticket.id.as_str()]).await;
        assert!((due / 1000.0 - seconds - 30.0).abs() < 5.0, "{due}");
        // As long as the ticket, and its assignment after it. A shorter one does not shorten it.
        for key in [&player, "presence"] {
            let life: i64 = raw.ask(&["PTTL", &tickets.key(key)]).await;
            assert!((150_000..=160_000).contains(&life), "{key}: {life}");
        }
        join(&players, 0, "casual").await;
        assert!(raw.ask::<i64>(&["PTTL", &tickets.key(&player)]).await > 600_000);
        players.leave(user(0), ticket.id.as_str()).await.unwrap();
        let ticket = join(&players, 0, "duel").await;
        assert!(raw.ask::<i64>(&["PTTL", &tickets.key(&player)]).await > 600_000);
        // Missing tickets are removed when they are found.
        players.leave(user(0), ticket.id.as_str()).await.unwrap();
        players.tickets(user(0)).await.unwrap();
        assert!(!tickets.keys().await.contains(&"presence".to_owned()));
        assert_eq!(raw.ask::<u64>(&["HLEN", &tickets.key(&player)]).await, 1);
    }
}

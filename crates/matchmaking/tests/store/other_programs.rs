//! Another program on the same Redis, which knows only the five documented keys.

use std::pin::pin;
use std::time::{Duration, Instant};

use buffa::Message;
use futures::StreamExt;
use http_server::Connection;
use matchmaking::model::SearchFields;
use matchmaking::store::{AssignOutcome, ClaimOutcome, ClaimRequest, DeleteOutcome, Holder, WatchState};
use proto::openmatch;
use runtime::Drain;
use testkit::{Redis, eventually, need};

use crate::setup::{PATIENCE, Raw, Setup, Tickets, data, group, id, ids, only, shuffled, ticket};

async fn both(redis: &Redis) -> [Tickets; 2] {
    [Setup::script(redis).open().await, Setup::lock(redis).open().await]
}

/// Creates a ticket as the other program does.
async fn write(tickets: &Tickets, raw: &mut Raw, id: &str, data: &[u8]) {
    raw.set(&tickets.key(id), data, 600).await;
    raw.ask::<()>(&["SADD", &tickets.key("allTickets"), id]).await;
}

#[tokio::test]
async fn tickets_of_another_program_are_fetched_in_order_and_matched() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all([10, 30, 50]).await;
        for number in [40, 20, 5] {
            write(&tickets, &mut raw, id(number).as_str(), &data(number)).await;
        }
        let fetched = tickets.fetch(&"engine".into(), 4).await.unwrap();
        assert_eq!((fetched.ids, fetched.waiting), (ids([5, 10, 20, 30]), 6));
        assert_eq!(tickets.counter("tickets_adopted"), 3);
        let read = tickets.read(&ids([5, 20])).await.unwrap();
        assert_eq!(read[1].fields.tags, ["tag 20"]);
        assert_eq!(read[1].created, ticket(20).created);
        assert_eq!(tickets.take(10).await, ids([40, 50]));
        assert_eq!(tickets.counter("tickets_adopted"), 3, "once each");
        let outcome = tickets.assign(&[group("mixed", ids([5, 10]))]).await.unwrap();
        assert_eq!(outcome, [AssignOutcome::Assigned]);
        assert_eq!(tickets.connection_of(&id(5)).await.as_deref(), Some("mixed"));
        assert_eq!(tickets.all().await, ids([20, 30, 40, 50]));
    }
}

#[tokio::test]
async fn tickets_of_another_program_are_matched_in_an_empty_queue() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        for number in shuffled(1200) {
            write(&tickets, &mut raw, id(number).as_str(), &data(number)).await;
        }
        assert_eq!(tickets.take(1100).await, ids(0..1100));
        assert_eq!(tickets.take(1100).await, ids(1100..1200));
        assert_eq!(tickets.counter("tickets_adopted"), 1200);
    }
}

#[tokio::test]
async fn tickets_of_another_program_can_be_read_watched_and_cancelled() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        for number in 0..3 {
            write(&tickets, &mut raw, id(number).as_str(), &data(number)).await;
        }
        assert_eq!(tickets.find(&id(0)).await.unwrap().data, Some(data(0)));
        assert_eq!(
            tickets.watch_states(&ids([0, 9])).await.unwrap(),
            [WatchState::Waiting, WatchState::Gone]
        );
        assert_eq!(tickets.delete(&id(0)).await.unwrap(), DeleteOutcome::Deleted);
        let outcome = tickets.assign(&[group("match", ids([1]))]).await.unwrap();
        assert_eq!(outcome, [AssignOutcome::Assigned]);
        assert_eq!(tickets.take(10).await, ids([2]));
    }
}

#[tokio::test]
async fn malformed_tickets_of_another_program_block_no_ticket() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all([1]).await;
        // A ticket without a time counts as the oldest; one without data does not exist; an unreadable one is detected
        // when it is read.
        let timeless = openmatch::Ticket { id: "timeless".to_owned(), ..Default::default() };
        write(&tickets, &mut raw, "timeless", &timeless.encode_to_vec()).await;
        write(&tickets, &mut raw, "broken", b"\xff\xff").await;
        raw.ask::<()>(&["SADD", &tickets.key("allTickets"), "empty", "not an id"]).await;
        let fetched = tickets.take(10).await;
        let fetched: Vec<&str> = fetched.iter().map(|id| id.as_str()).collect();
        assert_eq!(fetched, ["broken", "timeless", "t00001"]);
        let read = tickets.read(&tickets.list(10).await.unwrap().0).await.unwrap();
        let read: Vec<&str> = read.iter().map(|ticket| ticket.id.as_str()).collect();
        assert_eq!(read, ["timeless", "t00001"]);
        assert_eq!(tickets.take(10).await, []);
        let mut left: Vec<String> = raw.ask(&["SMEMBERS", &tickets.key("allTickets")]).await;
        left.sort();
        assert_eq!(left, ["not an id", "t00001", "timeless"]);
    }
}

#[tokio::test]
async fn tickets_removed_by_another_program_are_never_fetched() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(shuffled(6000)).await;
        // Those at the front, and every third one behind them.
        let out: Vec<usize> = (0..1500).chain((1500..6000).filter(|number| number % 3 == 0)).collect();
        for chunk in out.chunks(500) {
            let key = tickets.key("allTickets");
            let ids = ids(chunk.iter().copied());
            let command: Vec<&str> =
                ["SREM", &key].into_iter().chain(ids.iter().map(|id| id.as_str())).collect();
            raw.ask::<()>(&command).await;
        }
        let left: Vec<usize> = (1500..6000).filter(|number| number % 3 != 0).collect();
        assert_eq!(tickets.take(400).await, ids(left[..400].iter().copied()));
        let fetched = tickets.fetch(&"engine".into(), 2500).await.unwrap();
        assert_eq!(fetched.ids, ids(left[400..2900].iter().copied()));
        assert_eq!(fetched.waiting, 3000);
        assert_eq!(tickets.take(2500).await, ids(left[2900..].iter().copied()));
        let queued: u64 = raw.ask(&["ZCARD", &tickets.key("ticketQueue")]).await;
        assert_eq!(queued, 3000, "what had left is forgotten");
    }
}

#[tokio::test]
async fn queue_stays_in_proportion_while_only_another_program_fetches() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        let mut largest = 0;
        for batch in 0..40 {
            tickets.create_all(batch * 100..(batch + 1) * 100).await;
            // The other program matches all but ten of them.
            for number in batch * 100..batch * 100 + 90 {
                raw.ask::<()>(&["SREM", &tickets.key("allTickets"), id(number).as_str()]).await;
            }
            largest = largest.max(raw.ask::<u64>(&["ZCARD", &tickets.key("ticketQueue")]).await);
        }
        let waiting: u64 = raw.ask(&["SCARD", &tickets.key("allTickets")]).await;
        assert_eq!(waiting, 400);
        assert!(largest < 1000, "the queue grew to {largest} of 4000");
        // No ticket that waits was forgotten.
        assert_eq!(tickets.take(4000).await.len(), 400);
        assert_eq!(tickets.counter("tickets_adopted"), 0);
    }
}

fn connection() -> Connection {
    Connection::new(([127, 0, 0, 1], 1).into(), Drain::new())
}

/// Starts the frontend's loop, and waits until it knows the tickets that are created here.
async fn start(tickets: &Tickets) {
    let frontend = tickets.frontend.clone();
    tokio::spawn(async move { frontend.run(Drain::new()).await });
    let raw = tickets.raw().await;
    eventually("it is subscribed", PATIENCE, || {
        let (mut raw, channel) = (raw.clone(), tickets.key("assigned"));
        async move {
            let channels: Vec<String> = raw.ask(&["PUBSUB", "CHANNELS"]).await;
            let is_there = channels.iter().any(|name| name.contains(&channel));
            is_there.then_some(()).ok_or_else(|| format!("{channel} of {channels:?}"))
        }
    })
    .await;
}

/// Assigns a ticket as the other program does.
async fn assign_elsewhere(tickets: &Tickets, raw: &mut Raw, id: &str) {
    raw.set(&tickets.key(&format!("assign:{id}")), &only(&group("theirs", vec![])), 60).await;
    raw.ask::<()>(&["SREM", &tickets.key("allTickets"), id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_ticket_that_another_program_assigned_is_watched_as_assigned() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    start(&tickets).await;
    let mut raw = tickets.raw().await;
    // A moment after its creation a ticket is watched without a look at Redis.
    let id = tickets.frontend.create_from_fields(SearchFields::default()).await.unwrap();
    tickets.frontend.delete(id.as_str()).await.unwrap();
    assert!(tickets.frontend.watch(id.as_str(), &connection()).await.is_err(), "it is gone");
    assign_elsewhere(&tickets, &mut raw, id.as_str()).await;
    let watching = tickets.frontend.watch(id.as_str(), &connection()).await.unwrap();
    let first = pin!(watching).next().await.unwrap().unwrap();
    let first = openmatch::WatchAssignmentsResponse::decode_from_slice(&first).unwrap();
    assert_eq!(first.assignment.connection, "theirs");
    // Its data is gone, as it is for minimatch.
    let error = tickets.frontend.get(id.as_str()).await.unwrap_err();
    assert_eq!(base::error::Coded::code(&error), base::Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn assignments_of_another_program_reach_watchers_soon() {
    let mut setup = Setup::script(need!(Redis::shared().await));
    setup.watch_check = Duration::from_secs(5);
    let tickets = setup.open().await;
    start(&tickets).await;
    let mut raw = tickets.raw().await;
    let mut waits = Vec::new();
    for _ in 0..4 {
        let id = tickets.frontend.create_from_fields(SearchFields::default()).await.unwrap();
        let watching = tickets.frontend.watch(id.as_str(), &connection()).await.unwrap();
        assign_elsewhere(&tickets, &mut raw, id.as_str()).await;
        let started = Instant::now();
        pin!(watching).next().await.unwrap().unwrap();
        waits.push(started.elapsed());
    }
    // The first is found by the slow check. From then on nobody waits for it.
    assert!(waits[1..].iter().all(|wait| *wait < Duration::from_secs(2)), "{waits:?}");
}

#[tokio::test]
async fn matches_of_another_program_are_kept() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..4).await;
        assert_eq!(tickets.take(10).await, ids(0..4));
        let theirs = group("theirs", ids([0]));
        // It has finished the first match; of the second it has written only the assignment.
        for number in 0..2 {
            raw.set(&tickets.key(&format!("assign:{}", id(number))), &only(&theirs), 60).await;
        }
        for command in ["SREM", "ZREM"] {
            let key = if command == "SREM" { "allTickets" } else { "proposed_ticket_ids" };
            raw.ask::<()>(&[command, &tickets.key(key), id(0).as_str()]).await;
        }
        let groups = [group("ours", ids([2, 0])), group("ours", ids([3, 1]))];
        let outcomes = tickets.assign(&groups).await.unwrap();
        assert_eq!(outcomes, [AssignOutcome::Refused(id(0)), AssignOutcome::Refused(id(1))]);
        for number in 0..2 {
            assert_eq!(tickets.delete(&id(number)).await.unwrap(), DeleteOutcome::AlreadyAssigned);
            assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), Some("theirs"));
        }
        tickets.release(&ids(0..4)).await.unwrap();
        assert!(!tickets.take(10).await.contains(&id(0)));
    }
}

#[tokio::test]
async fn tickets_pending_in_another_program_are_not_fetched() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..3).await;
        let (now, _): (i64, u64) = raw.ask(&["TIME"]).await;
        let mut mark = async |number: usize, ago: i64| {
            let since = (now - ago).to_string();
            let key = tickets.key("proposed_ticket_ids");
            raw.ask::<()>(&["ZADD", &key, &since, id(number).as_str()]).await;
        };
        // One that it holds, and one that it has forgotten: the timeout is a minute.
        mark(0, 30).await;
        mark(1, 62).await;
        assert_eq!(tickets.take(10).await, ids([1, 2]));
    }
}

#[tokio::test]
async fn engine_of_another_program_is_known_by_the_tickets_that_it_holds() {
    let redis = need!(Redis::shared().await);
    // The score of minimatch is in seconds, that of Open Match in nanoseconds.
    for unit in [1, 1_000_000_000] {
        let tickets = Setup::script(redis).open().await;
        let mut raw = tickets.raw().await;
        tickets.create_all(0..4).await;
        // Our own claims, and one that the other program has forgotten, are no sign of it.
        assert_eq!(tickets.take(1).await, ids([0]));
        assert_eq!(tickets.take(1).await, ids([1]));
        let (now, _): (i64, u64) = raw.ask(&["TIME"]).await;
        let mut mark = async |number: usize, score: i64| {
            let (key, id) = (tickets.key("proposed_ticket_ids"), id(number));
            raw.ask::<()>(&["ZADD", &key, &score.to_string(), id.as_str()]).await;
        };
        mark(2, now - 62).await;
        assert_eq!(tickets.take(1).await, ids([2]));
        assert_eq!(tickets.gauge("foreign_engine"), 0);
        mark(2, now * unit).await;
        assert_eq!(tickets.take(1).await, ids([3]));
        assert_eq!((tickets.gauge("foreign_engine"), tickets.counter("foreign_locks")), (1, 0));
        // From now on every step takes the lock.
        raw.set(&tickets.key("fetchTicketsLock"), b"theirs", 60).await;
        let released = tickets.clone();
        let running = tokio::spawn(async move { released.release(&ids([3])).await });
        tokio::time::timeout(Duration::from_millis(300), running).await.expect_err("it waits for the lock");
        raw.ask::<()>(&["DEL", &tickets.key("fetchTicketsLock")]).await;
    }
}

/// A fleet of Directors fetches no tickets; it meets those of the other program when it claims.
#[tokio::test]
async fn engine_of_another_program_is_known_by_the_tickets_that_no_director_gets() {
    let redis = need!(Redis::shared().await);
    for unit in [1, 1_000_000_000] {
        let tickets = Setup::script(redis).open().await;
        let mut raw = tickets.raw().await;
        tickets.create_all(0..4).await;
        let claim = async |numbers: [usize; 2]| {
            let request = ClaimRequest {
                number: None,
                holder: Holder::default(),
                backfill: None,
                tickets: ids(numbers),
            };
            tickets.claim(&[request]).await.unwrap().remove(0)
        };
        let (now, _): (i64, u64) = raw.ask(&["TIME"]).await;
        let mut mark = async |number: usize, score: i64| {
            let (key, id) = (tickets.key("proposed_ticket_ids"), id(number));
            raw.ask::<()>(&["ZADD", &key, &score.to_string(), id.as_str()]).await;
        };
        // Our own claims, and one that the other program has forgotten, are no sign of it.
        mark(1, now - 62).await;
        assert!(matches!(claim([0, 1]).await, ClaimOutcome::Claimed(_)));
        assert_eq!(claim([1, 2]).await, ClaimOutcome::Refused(id(1)));
        assert_eq!(tickets.gauge("foreign_engine"), 0);
        mark(2, now * unit).await;
        assert_eq!(claim([3, 2]).await, ClaimOutcome::Refused(id(2)));
        assert_eq!((tickets.gauge("foreign_engine"), tickets.counter("foreign_locks")), (1, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_assignment_of_another_program_is_seen_soon_if_it_is_expected() {
    let mut setup = Setup::lock(need!(Redis::shared().await));
    setup.watch_check = Duration::from_secs(600);
    let tickets = setup.open().await;
    start(&tickets).await;
    let mut raw = tickets.raw().await;
    let id = tickets.frontend.create_from_fields(SearchFields::default()).await.unwrap();
    let watching = tickets.frontend.watch(id.as_str(), &connection()).await.unwrap();
    assign_elsewhere(&tickets, &mut raw, id.as_str()).await;
    tokio::time::timeout(PATIENCE, pin!(watching).next()).await.expect("it is seen").unwrap().unwrap();
}

//! A player's own tickets, and no other player's.

use std::pin::pin;
use std::time::Duration;

use base::Code;
use base::error::Coded;
use futures::{Stream, StreamExt};
use http_server::Connection;
use matchmaking::{Error, JoinRequest, PlayerState, PlayerTicket, Queue};
use runtime::Drain;

use crate::setup::{PATIENCE, Setup, Tickets, to, user};

for_every_store! {
    ticket_carries_its_queue_player_and_fields,
    ticket_of_another_player_looks_missing,
    leaving_works_once_and_not_after_the_match,
    watcher_receives_each_state_until_the_ticket_is_gone,
    watcher_gets_an_error_when_the_process_stops,
    watching_from_another_process_starts_with_the_current_state,
}

fn connection() -> Connection {
    Connection::new(([127, 0, 0, 1], 1).into(), Drain::new())
}

/// Delivers assignments until the test ends.
async fn listen(tickets: &Tickets) {
    let frontend = tickets.frontend.clone();
    tokio::spawn(async move { frontend.run(Drain::new()).await });
}

async fn next(stream: &mut (impl Stream<Item = Result<PlayerTicket, Error>> + Unpin)) -> PlayerTicket {
    tokio::time::timeout(PATIENCE, stream.next()).await.expect("in time").expect("another").unwrap()
}

async fn ticket_carries_its_queue_player_and_fields(setup: Setup) {
    let tickets = setup.open().await;
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let ranked = Queue {
        numbers: names(&["mmr", "level"]),
        strings: names(&["region"]),
        tags: names(&["crossplay"]),
        ..Queue::default()
    };
    let players = tickets.players([("duel", Queue::default()), ("ranked", ranked)]);
    let wish = JoinRequest {
        numbers: [("mmr".to_owned(), 1500.0)].into(),
        strings: [("region".to_owned(), "eu".to_owned())].into(),
        tags: names(&["crossplay"]),
        ..to("ranked")
    };
    let before = tickets.clock.now();
    let ticket = players.join(user(0), wish.clone()).await.unwrap().ticket;
    assert_eq!((ticket.queue.as_str(), ticket.state), ("ranked", PlayerState::Waiting));
    assert!(ticket.created_at >= before && ticket.created_at.distance(before) < PATIENCE);
    assert_eq!(ticket.expires_at, Some(ticket.created_at.after(Duration::from_secs(600))));
    let stored = tickets.read(std::slice::from_ref(&ticket.id)).await.unwrap().remove(0);
    assert_eq!(stored.fields.doubles, [("mmr".to_owned(), 1500.0)].into());
    let strings = [("queue", "ranked"), ("region", "eu")];
    assert_eq!(
        stored.fields.strings,
        strings.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    );
    assert_eq!(stored.fields.tags, ["crossplay"]);

    let refused = async |wish: JoinRequest| {
        let error = players.join(user(1), wish).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        error.to_string()
    };
    assert_eq!(refused(to("race")).await, "there is no queue \"race\"; the queues are duel, ranked");
    let not = JoinRequest { numbers: [("elo".to_owned(), 1.0)].into(), ..wish.clone() };
    assert_eq!(
        refused(not).await,
        "the queue ranked does not accept the number \"elo\"; it accepts mmr, level"
    );
    let not = JoinRequest { strings: [("queue".to_owned(), "duel".to_owned())].into(), ..wish.clone() };
    assert_eq!(
        refused(not).await,
        "the queue ranked does not accept the string \"queue\"; it accepts region"
    );
    let not = JoinRequest { tags: names(&["beta"]), ..to("duel") };
    assert_eq!(refused(not).await, "the queue duel does not accept the tag \"beta\"; it accepts none");
    for odd in [f64::NAN, f64::INFINITY] {
        let not = JoinRequest { numbers: [("mmr".to_owned(), odd)].into(), ..to("ranked") };
        assert_eq!(refused(not).await, "mmr must be a number");
    }
    let long = JoinRequest { strings: [("region".to_owned(), "x".repeat(70_000))].into(), ..to("ranked") };
    assert!(refused(long).await.contains("at most 65536"));
    assert_eq!(tickets.all().await.len(), 1);
}

async fn ticket_of_another_player_looks_missing(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    let id = ticket.id.as_str();
    assert_eq!(players.ticket(user(0), id).await.unwrap(), ticket);
    // A ticket of an Open Match client has no player.
    tickets.create_all(0..1).await;
    for (user, id) in [(user(1), id), (user(0), "t00000"), (user(0), "unknown")] {
        let errors = [
            players.ticket(user, id).await.unwrap_err(),
            players.watch(user, id, &connection()).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.to_string(), format!("there is no ticket {id}; it may have expired"));
        }
        players.leave(user, id).await.unwrap();
    }
    assert_eq!(players.tickets(user(1)).await.unwrap(), []);
    assert_eq!(tickets.all().await.len(), 2, "nobody but their players takes them back");
    assert_eq!(players.tickets(user(0)).await.unwrap(), [ticket]);
}

async fn leaving_works_once_and_not_after_the_match(setup: Setup) {
    let tickets = setup.open().await;
    let players = tickets.players([("duel", Queue::default())]);
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    for _ in 0..2 {
        players.leave(user(0), ticket.id.as_str()).await.unwrap();
    }
    assert!(matches!(players.ticket(user(0), ticket.id.as_str()).await, Err(Error::NotFound(_))));
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    tickets.play("match", &[&ticket]).await;
    let error = players.leave(user(0), ticket.id.as_str()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    let read = players.ticket(user(0), ticket.id.as_str()).await.unwrap();
    assert_eq!((read.state, read.expires_at), (PlayerState::Assigned, None));
    assert_eq!(read.assignment.unwrap().connection, "match");
}

async fn watcher_receives_each_state_until_the_ticket_is_gone(setup: Setup) {
    let tickets = setup.with(|rules| rules.assigned_ttl = Duration::from_millis(500)).open().await;
    listen(&tickets).await;
    let players = tickets.players([("duel", Queue::default())]);
    let [played, left] = [0, 1].map(user);
    let mut streams = Vec::new();
    for user in [played, left] {
        let ticket = players.join(user, to("duel")).await.unwrap().ticket;
        let watching = players.watch(user, ticket.id.as_str(), &connection()).await.unwrap();
        let mut watching = Box::pin(watching);
        assert_eq!(next(&mut watching).await, ticket);
        streams.push((ticket, watching));
    }
    let (ticket, watching) = &mut streams[0];
    tickets.play("match", &[ticket]).await;
    let received = next(watching).await;
    assert_eq!((&received.id, received.state), (&ticket.id, PlayerState::Assigned));
    assert_eq!(received.assignment.unwrap().connection, "match");
    players.leave(left, streams[1].0.id.as_str()).await.unwrap();
    for (ticket, watching) in &mut streams {
        let received = async {
            let last = next(watching).await;
            let end = tokio::time::timeout(PATIENCE, watching.next()).await.expect("in time");
            assert!(end.is_none(), "that was the last");
            last
        };
        tokio::pin!(received);
        // An assigned ticket expires in its own time.
        let last = loop {
            tokio::select! {
                last = &mut received => break last,
                () = tokio::time::sleep(Duration::from_millis(10)) => tickets.pass(Duration::from_millis(10)),
            }
        };
        assert_eq!((&last.id, last.state, last.assignment), (&ticket.id, PlayerState::Gone, None));
    }
}

async fn watcher_gets_an_error_when_the_process_stops(setup: Setup) {
    let tickets = setup.open().await;
    listen(&tickets).await;
    let players = tickets.players([("duel", Queue::default())]);
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    let drain = Drain::new();
    let watching = players
        .watch(user(0), ticket.id.as_str(), &Connection::new(([127, 0, 0, 1], 1).into(), drain.clone()))
        .await
        .unwrap();
    let mut watching = pin!(watching);
    assert_eq!(next(&mut watching).await, ticket);
    drain.request();
    let last = tokio::time::timeout(PATIENCE, watching.next()).await.unwrap();
    assert!(matches!(last, Some(Err(Error::Stopping))), "{last:?}");
    assert!(watching.next().await.is_none());
    assert_eq!(players.tickets(user(0)).await.unwrap(), [ticket], "it waits on");
}

async fn watching_from_another_process_starts_with_the_current_state(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    listen(&other).await;
    let players = tickets.players([("duel", Queue::default())]);
    let elsewhere = other.players([("duel", Queue::default())]);
    let ticket = players.join(user(0), to("duel")).await.unwrap().ticket;
    let mut early = pin!(elsewhere.watch(user(0), ticket.id.as_str(), &connection()).await.unwrap());
    assert_eq!(next(&mut early).await.state, PlayerState::Waiting);
    tickets.play("match", &[&ticket]).await;
    let mut late = pin!(elsewhere.watch(user(0), ticket.id.as_str(), &connection()).await.unwrap());
    let received = next(&mut late).await;
    assert_eq!(next(&mut early).await, received);
    assert_eq!(received.assignment.unwrap().connection, "match");
    // Sent once.
    let more = tokio::time::timeout(Duration::from_millis(300), late.next()).await;
    assert!(more.is_err(), "{more:?}");
}

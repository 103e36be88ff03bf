//! A Redis that loses its scripts, its connections, or all data.

use std::time::{Duration, Instant};

use base::error::Coded;
use futures::StreamExt;
use matchmaking::store::{AfterNotify, AssignOutcome, BatchRange, DeleteOutcome, TicketEvent, WatchState};
use testkit::{FaultProxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, Tickets, group, id, ids, matches, names, ticket};

async fn both(redis: &Redis) -> [Tickets; 2] {
    [Setup::script(redis).open().await, Setup::lock(redis).open().await]
}

#[tokio::test]
async fn lost_scripts_are_reloaded() {
    let redis = need!(Redis::private().await);
    for tickets in both(&redis).await {
        let mut raw = tickets.raw().await;
        let mut flush = async || raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        flush().await;
        tickets.create_all(0..600).await;
        flush().await;
        assert_eq!(tickets.take(5).await, ids(0..5));
        flush().await;
        tickets.release(&ids(0..2)).await.unwrap();
        flush().await;
        assert_eq!(tickets.delete(&id(0)).await.unwrap(), DeleteOutcome::Deleted);
        flush().await;
        tickets.deindex(&id(1)).await.unwrap();
        flush().await;
        let outcomes = tickets.assign(&[group("match", ids([2, 3])), group("not", ids([0]))]).await.unwrap();
        assert_eq!(outcomes, [AssignOutcome::Assigned, AssignOutcome::Refused(id(0))]);
        assert_eq!(tickets.unrecorded_size().await.unwrap().0, 1, "nothing is done twice");
        flush().await;
        // Many calls at once, each of which loads the script itself.
        let fetching = (0..50).map(|_| tickets.take(10));
        let fetched = futures::future::join_all(fetching).await.concat();
        assert_eq!(crate::setup::sorted(fetched), ids(5..505));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_returns_empty_is_used_within_two_seconds() {
    let mut redis = need!(Redis::private().await);
    for setup in [Setup::script(&redis), Setup::lock(&redis)] {
        let setup = setup.clone().through(redis.url(), Duration::from_millis(500));
        let tickets = setup.open().await;
        tickets.create_all(0..3).await;
        tickets.assign(&[group("before", ids([0]))]).await.unwrap();
        let entries = tickets.entries().await;
        assert_eq!(names(&entries), ["before"]);
        let mut pushes = tickets.ticket_events().await.unwrap();
        redis.kill().await.unwrap();

        let started = Instant::now();
        let end = tokio::time::timeout(PATIENCE, pushes.next()).await.expect("the stream ends");
        assert!(end.is_none(), "{end:?}");
        let errors = [
            tickets.create(ticket(9)).await.unwrap_err(),
            tickets.find(&id(0)).await.unwrap_err(),
            tickets.watch_states(&ids([0])).await.unwrap_err(),
            tickets.delete(&id(1)).await.unwrap_err(),
            tickets.deindex(&id(1)).await.unwrap_err(),
            tickets.fetch(&"engine".into(), 10).await.unwrap_err(),
            tickets.read(&ids([1])).await.unwrap_err(),
            tickets.release(&ids([1])).await.unwrap_err(),
            tickets.assign(&[group("match", ids([1, 2]))]).await.unwrap_err(),
            tickets.ticket_events().await.map(drop).unwrap_err(),
            tickets.claim_unrecorded("recorder", 10, PATIENCE, BatchRange::default()).await.unwrap_err(),
            tickets.notify(&entries, AfterNotify::Remove).await.unwrap_err(),
            tickets.unrecorded_size().await.unwrap_err(),
            tickets.list(10).await.unwrap_err(),
            tickets.status(&id(1)).await.unwrap_err(),
        ];
        for error in errors {
            assert!(error.is_transient(), "{error:?}");
        }
        assert!(started.elapsed() < Duration::from_secs(14), "{:?}: nothing hangs", started.elapsed());

        redis.start_again().await.unwrap();
        let soon = Duration::from_secs(2);
        let mut pushes = eventually("there is a new stream", soon, || tickets.ticket_events()).await;
        eventually("a ticket can be made", soon, || tickets.create(ticket(5))).await;
        assert_eq!(
            tickets.watch_states(&ids([1, 5])).await.unwrap(),
            [WatchState::Gone, WatchState::Waiting]
        );
        assert_eq!(tickets.take(10).await, ids([5]));
        let outcomes = tickets.assign(&[group("old", ids([1])), group("new", ids([5]))]).await.unwrap();
        assert_eq!(outcomes, [AssignOutcome::Refused(id(1)), AssignOutcome::Assigned]);
        let Some(TicketEvent::Assigned(made)) = pushes.next().await else { panic!("no push") };
        assert_eq!(matches(&made), [("new".to_owned(), ids([5]))]);
        let entries = tickets.entries().await;
        assert_eq!(names(&entries), ["new"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connection_costs_no_ticket() {
    let redis = need!(Redis::private().await);
    for tickets in both(&redis).await {
        let mut raw = tickets.raw().await;
        for number in 0..10 {
            raw.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
            tickets.create(ticket(number)).await.unwrap();
            raw.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
            assert!(tickets.find(&id(number)).await.unwrap().data.is_some());
        }
        assert_eq!(tickets.take(100).await, ids(0..10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_network_is_detected_and_recovered_from() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let setup = Setup::script(&redis).through(proxy.url(&redis.url()), Duration::from_millis(300));
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    proxy.half_open().await;
    let error = tickets.fetch(&"engine".into(), 1).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    proxy.pass().await;
    let fetched = eventually("tickets are handed out again", PATIENCE, async || {
        tickets.fetch(&"engine".into(), 10).await.map(|fetched| fetched.ids)
    });
    // The requests sent during the silence never arrived, so nothing is pending.
    assert_eq!(fetched.await, ids(0..2));
}

//! Cancelling a ticket.

use futures::future::join_all;
use matchmaking::store::{AssignOutcome, DeleteOutcome, StoredTicket, WatchState};

use crate::setup::{Setup, group, id, ids, matches, shuffled, sorted};

for_every_store! {
    cancelled_ticket_is_gone,
    assigned_ticket_cannot_be_cancelled,
    ticket_is_cancelled_or_assigned_never_both,
}

async fn cancelled_ticket_is_gone(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    assert_eq!(tickets.take(1).await, ids([0]));
    for number in 0..2 {
        assert_eq!(tickets.delete(&id(number)).await.unwrap(), DeleteOutcome::Deleted);
        assert_eq!(tickets.find(&id(number)).await.unwrap(), StoredTicket::default());
        assert_eq!(tickets.delete(&id(number)).await.unwrap(), DeleteOutcome::NotFound);
    }
    tickets.release(&ids(0..2)).await.unwrap();
    assert_eq!(tickets.take(10).await, ids([2]));
    assert_eq!(tickets.all().await, ids([2]));
    assert_eq!(tickets.delete(&id(99)).await.unwrap(), DeleteOutcome::NotFound);
}

async fn assigned_ticket_cannot_be_cancelled(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    tickets.assign(&[group("match", ids(0..2))]).await.unwrap();
    assert_eq!(tickets.delete(&id(0)).await.unwrap(), DeleteOutcome::AlreadyAssigned);
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("match"));
    assert!(tickets.find(&id(0)).await.unwrap().data.is_some());
}

async fn ticket_is_cancelled_or_assigned_never_both(setup: Setup) {
    const MATCHES: usize = 300;
    let engine = setup.open().await;
    let frontend = engine.elsewhere().await;
    engine.create_all(0..MATCHES * 2).await;
    // In each match a player cancels at the same time.
    let both = shuffled(MATCHES).into_iter().enumerate().map(|(at, number)| {
        let (engine, frontend) = (engine.clone(), frontend.clone());
        let assign = async move {
            let group = group(&format!("match {number}"), ids([number * 2 + 1, number * 2]));
            engine.assign(&[group]).await.unwrap().remove(0)
        };
        let cancel = async move { frontend.delete(&id(number * 2)).await.unwrap() };
        // Alternate the order, so that both sides win at times.
        let (assign, cancel) = if at % 2 == 0 {
            let assign = tokio::spawn(assign);
            (assign, tokio::spawn(cancel))
        } else {
            let cancel = tokio::spawn(cancel);
            (tokio::spawn(assign), cancel)
        };
        async move { (number, assign.await.unwrap(), cancel.await.unwrap()) }
    });
    let outcomes = join_all(both).await;
    let mut made = Vec::new();
    for (number, outcome, deleted) in outcomes {
        let (leaver, stayer) = (id(number * 2), id(number * 2 + 1));
        let seen = engine.watch_states(&[leaver.clone(), stayer.clone()]).await.unwrap();
        match outcome {
            AssignOutcome::Assigned => {
                assert_eq!(deleted, DeleteOutcome::AlreadyAssigned, "match {number}");
                assert!(matches!(seen[..], [WatchState::Assigned(_), WatchState::Assigned(_)]), "{seen:?}");
                made.push((format!("match {number}"), vec![stayer, leaver]));
            }
            AssignOutcome::Abandoned | AssignOutcome::Stale(_) => panic!("nobody gave it up"),
            AssignOutcome::Refused(id) => {
                assert_eq!((deleted, &id), (DeleteOutcome::Deleted, &leaver), "match {number}");
                assert_eq!(seen, [WatchState::Gone, WatchState::Waiting]);
            }
        }
    }
    let entries = engine.entries().await;
    let received = entries.iter().flat_map(|entry| matches(&entry.matches));
    assert_eq!(sorted(received), sorted(made));
}

//! The events that subscribers receive.

use futures::StreamExt;
use futures::stream::BoxStream;
use matchmaking::store::{TicketEvent, WatchState};

use crate::setup::{PATIENCE, Setup, group, id, ids, matches, only};

for_every_store! {
    every_subscriber_receives_matches_and_cancellations,
    watch_states_show_each_ticket,
    watch_states_of_thousands_keep_their_order,
}

async fn next(pushes: &mut BoxStream<'static, TicketEvent>) -> TicketEvent {
    tokio::time::timeout(PATIENCE, pushes.next()).await.expect("a push").expect("the store is there")
}

async fn every_subscriber_receives_matches_and_cancellations(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..5).await;
    let mut listeners =
        [tickets.ticket_events().await.unwrap(), tickets.elsewhere().await.ticket_events().await.unwrap()];
    tickets.delete(&id(99)).await.unwrap();
    tickets.delete(&id(4)).await.unwrap();
    tickets.assign(&[group("not", ids([0, 4]))]).await.unwrap();
    let groups = [group("one", ids([0, 1])), group("nor", ids([4])), group("two", ids([2]))];
    tickets.assign(&groups).await.unwrap();
    tickets.delete(&id(0)).await.unwrap();
    tickets.delete(&id(3)).await.unwrap();
    for pushes in &mut listeners {
        // These, in this order, and nothing for the refused match.
        let push = next(pushes).await;
        assert!(matches!(&push, TicketEvent::Gone(gone) if *gone == id(4)), "{push:?}");
        let TicketEvent::Assigned(made) = next(pushes).await else { panic!("no matches") };
        assert_eq!(matches(&made), [("one".to_owned(), ids([0, 1])), ("two".to_owned(), ids([2]))]);
        let push = next(pushes).await;
        assert!(matches!(&push, TicketEvent::Gone(gone) if *gone == id(3)), "{push:?}");
    }
}

async fn watch_states_show_each_ticket(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    assert_eq!(tickets.watch_states(&ids([0])).await.unwrap(), [WatchState::Waiting]);
    let one = group("one", ids([1]));
    tickets.assign(std::slice::from_ref(&one)).await.unwrap();
    tickets.delete(&id(2)).await.unwrap();
    tickets.deindex(&id(3)).await.unwrap();
    let assigned = WatchState::Assigned(only(&one));
    let seen = tickets.watch_states(&ids([2, 1, 0, 99, 3, 1])).await.unwrap();
    assert_eq!(
        seen,
        [
            WatchState::Gone,
            assigned.clone(),
            WatchState::Waiting,
            WatchState::Gone,
            WatchState::Waiting,
            assigned
        ]
    );
    assert_eq!(tickets.watch_states(&[]).await.unwrap(), []);
}

async fn watch_states_of_thousands_keep_their_order(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all((0..2500).step_by(2)).await;
    let made = group("match", ids((0..2500).step_by(4)));
    tickets.assign(std::slice::from_ref(&made)).await.unwrap();
    let seen = tickets.watch_states(&ids(0..2500)).await.unwrap();
    assert_eq!(seen.len(), 2500);
    for (number, seen) in seen.into_iter().enumerate() {
        let expected = match number % 4 {
            0 => WatchState::Assigned(only(&made).clone()),
            2 => WatchState::Waiting,
            _ => WatchState::Gone,
        };
        assert_eq!(seen, expected, "{number}");
    }
}

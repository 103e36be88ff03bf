//! Fetching tickets: the oldest first, none twice.

use std::time::Duration;

use futures::future::join_all;
use testkit::eventually;

use crate::setup::{PATIENCE, Setup, id, ids, shuffled, sorted, ticket};

for_every_store! {
    fetched_tickets_are_not_fetched_again_until_released,
    pending_ticket_becomes_active_after_the_timeout,
    a_hundred_engines_never_fetch_the_same_ticket,
    oldest_tickets_come_first_in_any_insertion_order,
    tickets_of_the_same_moment_have_a_stable_order,
    thousands_are_fetched_in_order_past_pending_ones,
    released_ticket_keeps_its_place,
    thousands_of_tickets_are_released_at_once,
    deindexed_ticket_is_not_fetched_and_can_be_read,
    creating_a_ticket_again_changes_nothing,
    creating_a_ticket_again_after_its_match_does_not_restore_it,
    idle_engine_is_woken_by_the_next_ticket,
}

async fn fetched_tickets_are_not_fetched_again_until_released(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..3).await;
    let fetched = tickets.fetch(&"engine".into(), 10).await.unwrap();
    assert_eq!((fetched.ids, fetched.waiting), (ids(0..3), 3));
    let fetched = other.fetch(&"other".into(), 10).await.unwrap();
    assert_eq!((fetched.ids, fetched.waiting), (vec![], 3));
    tickets.release(&[id(1)]).await.unwrap();
    assert_eq!(other.take(10).await, ids([1]));
    assert_eq!(tickets.take(10).await, []);
    tickets.release(&[]).await.unwrap();
    assert_eq!(tickets.take(10).await, []);
}

async fn pending_ticket_becomes_active_after_the_timeout(setup: Setup) {
    let timeout = Duration::from_secs(1);
    let tickets = setup.with(|rules| rules.pending_timeout = timeout).open().await;
    tickets.create_all(0..2).await;
    let before = tickets.clock.now();
    assert_eq!(tickets.take(10).await, ids(0..2));
    let again = eventually("it is active again", PATIENCE, async || {
        tickets.pass(Duration::from_millis(100));
        Some(tickets.take(10).await).filter(|ids| !ids.is_empty())
    })
    .await;
    let waited = tickets.clock.now().distance(before);
    assert!(waited > timeout, "{waited:?}");
    assert_eq!(again, ids(0..2));
    assert_eq!(tickets.take(10).await, [], "now it is pending anew");
}

async fn a_hundred_engines_never_fetch_the_same_ticket(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(shuffled(1000)).await;
    let mut fetching = Vec::new();
    for _ in 0..4 {
        let process = tickets.elsewhere().await;
        fetching.extend((0..25).map(|_| {
            let process = process.clone();
            tokio::spawn(async move { process.take(25).await })
        }));
    }
    let handed_out = join_all(fetching).await.into_iter().flat_map(Result::unwrap);
    assert_eq!(sorted(handed_out), ids(0..1000), "all of them, and each once");
}

async fn oldest_tickets_come_first_in_any_insertion_order(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(shuffled(500)).await;
    for round in 0..10 {
        assert_eq!(tickets.take(50).await, ids(round * 50..(round + 1) * 50), "round {round}");
    }
    assert_eq!(tickets.take(50).await, []);
}

async fn tickets_of_the_same_moment_have_a_stable_order(setup: Setup) {
    let tickets = setup.open().await;
    for number in shuffled(20) {
        let mut ticket = ticket(number);
        ticket.created = crate::setup::ticket(0).created;
        tickets.create(ticket).await.unwrap();
    }
    assert_eq!(tickets.take(7).await, ids(0..7));
    assert_eq!(tickets.take(100).await, ids(7..20));
}

async fn thousands_are_fetched_in_order_past_pending_ones(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(shuffled(6000)).await;
    assert_eq!(tickets.take(1700).await, ids(0..1700));
    // Gaps among the pending tickets.
    tickets.release(&ids((0..1700).step_by(17))).await.unwrap();
    let fetched = tickets.fetch(&"engine".into(), 2500).await.unwrap();
    assert_eq!(fetched.ids, ids((0..1700).step_by(17).chain(1700..4100)));
    assert_eq!(fetched.waiting, 6000);
    assert_eq!(tickets.take(10_000).await, ids(4100..6000));
}

async fn released_ticket_keeps_its_place(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..10).await;
    assert_eq!(tickets.take(5).await, ids(0..5));
    tickets.release(&ids([3, 1])).await.unwrap();
    assert_eq!(tickets.take(4).await, ids([1, 3, 5, 6]));
}

async fn thousands_of_tickets_are_released_at_once(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3500).await;
    assert_eq!(tickets.take(3500).await.len(), 3500);
    tickets.release(&ids(0..3500)).await.unwrap();
    assert_eq!(tickets.take(3500).await, ids(0..3500));
}

async fn deindexed_ticket_is_not_fetched_and_can_be_read(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..3).await;
    tickets.deindex(&id(0)).await.unwrap();
    assert_eq!(tickets.take(1).await, ids([1]));
    tickets.deindex(&id(1)).await.unwrap();
    tickets.release(&[id(1)]).await.unwrap();
    assert_eq!(tickets.take(10).await, ids([2]));
    assert_eq!(tickets.find(&id(0)).await.unwrap().data, Some(ticket(0).data));
    assert_eq!(tickets.delete(&id(0)).await.unwrap(), matchmaking::store::DeleteOutcome::Deleted);
    assert_eq!(tickets.find(&id(0)).await.unwrap().data, None);
    tickets.deindex(&id(99)).await.unwrap();
}

async fn creating_a_ticket_again_changes_nothing(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    assert_eq!(tickets.take(1).await, ids([0]));
    let mut again = ticket(0);
    (again.data, again.created) = (ticket(7).data, ticket(7).created);
    tickets.create(again).await.unwrap();
    assert_eq!(tickets.find(&id(0)).await.unwrap().data, Some(ticket(0).data));
    assert_eq!(tickets.all().await, ids(0..2));
    assert_eq!(tickets.take(10).await, ids([1]), "the first is pending still");
}

async fn creating_a_ticket_again_after_its_match_does_not_restore_it(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2).await;
    let made = tickets.assign(&[crate::setup::group("match", ids([0]))]).await.unwrap();
    assert_eq!(made, [matchmaking::store::AssignOutcome::Assigned]);
    // Alone, and in one batch with others.
    tickets.create(ticket(0)).await.unwrap();
    tickets.create_all([0, 1, 2]).await;
    tickets.deindex(&id(1)).await.unwrap();
    tickets.create_all([1]).await;
    assert_eq!(tickets.all().await, ids([2]));
    assert_eq!(tickets.take(10).await, ids([2]));
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("match"));
}

async fn idle_engine_is_woken_by_the_next_ticket(setup: Setup) {
    let tickets = setup.open().await;
    let wake = std::sync::Arc::new(tokio::sync::Notify::new());
    let (process, woken) = (tickets.elsewhere().await, wake.clone());
    let listening =
        tokio::spawn(async move { process.listen_for_wakes(&"engine".into(), &woken).await.map(drop) });
    let woken = async || tokio::time::timeout(PATIENCE, wake.notified()).await.unwrap();
    if tickets.is_in_redis() {
        // Ignore the wake-up that covers the time before the subscription.
        woken().await;
    }
    for number in 0..3 {
        assert_eq!(tickets.take(10).await, []);
        tickets.create(ticket(number)).await.unwrap();
        woken().await;
        assert_eq!(tickets.take(1).await, ids([number]));
    }
    listening.abort();
}

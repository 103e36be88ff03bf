//! Reading tickets, for players, for matching and for operators.

use std::time::Duration;

use base::Timestamp;
use matchmaking::ExpiredTickets;
use matchmaking::store::{AssignOutcome, StoredTicket};
use testkit::{FaultProxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, group, id, ids, only, ticket};

for_every_store! {
    tickets_are_read_with_all_their_fields,
    expired_ticket_is_not_found_and_reading_it_for_matching_removes_it,
    unreadable_ticket_is_removed_and_blocks_no_ticket,
    operator_sees_the_oldest_tickets_and_their_number,
    operator_sees_the_status_of_a_ticket,
}

async fn tickets_are_read_with_all_their_fields(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..2500).await;
    let read = tickets.read(&ids((0..2500).rev())).await.unwrap();
    assert_eq!(read.len(), 2500);
    for (number, read) in (0..2500).rev().zip(read) {
        assert_eq!((&read.id, read.created), (&id(number), ticket(number).created));
        assert_eq!(read.fields.tags, [format!("tag {number}")]);
    }
    assert_eq!(tickets.counter("tickets_repaired"), 0);
    let some = tickets.read(&ids([3, 9999, 1])).await.unwrap();
    assert_eq!(some.iter().map(|ticket| ticket.id.clone()).collect::<Vec<_>>(), ids([3, 1]));
}

async fn expired_ticket_is_not_found_and_reading_it_for_matching_removes_it(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all([0, 2]).await;
    let mut short = ticket(1);
    short.ttl = Duration::from_millis(200);
    let before = tickets.clock.now();
    tickets.create(short).await.unwrap();
    eventually("it has expired", PATIENCE, async || {
        tickets.pass(Duration::from_millis(30));
        tickets.find(&id(1)).await.unwrap() == StoredTicket::default()
    })
    .await;
    let lived = tickets.clock.now().distance(before);
    assert!(lived >= Duration::from_millis(200), "{lived:?}");
    if tickets.is_in_redis() {
        // Reading for a player does not repair.
        assert_eq!(tickets.take(10).await, ids(0..3));
        assert_eq!(tickets.counter("tickets_repaired"), 0);
    }
    let read = tickets.read(&ids(0..3)).await.unwrap();
    assert_eq!(read.iter().map(|ticket| ticket.id.clone()).collect::<Vec<_>>(), ids([0, 2]));
    assert_eq!(tickets.counter("tickets_repaired"), 1);
    assert_eq!(tickets.all().await, ids([0, 2]));
    tickets.release(&ids(0..3)).await.unwrap();
    assert_eq!(tickets.take(10).await, ids([0, 2]));
    tickets.read(&ids(0..3)).await.unwrap();
    assert_eq!(tickets.counter("tickets_repaired"), 1, "once is enough");
}

async fn unreadable_ticket_is_removed_and_blocks_no_ticket(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all([0, 2]).await;
    let mut broken = ticket(1);
    broken.data = bytes::Bytes::from_static(b"\xff\xff\xff");
    tickets.create(broken.clone()).await.unwrap();
    assert_eq!(tickets.take(10).await, ids(0..3));
    assert_eq!(tickets.read(&ids(0..3)).await.unwrap().len(), 2);
    assert_eq!(tickets.all().await, ids([0, 2]));
    assert_eq!(tickets.find(&id(1)).await.unwrap().data, Some(broken.data), "the operator can still read it");
}

async fn operator_sees_the_oldest_tickets_and_their_number(setup: Setup) {
    let tickets = setup.open().await;
    assert_eq!(tickets.list(10).await.unwrap(), (vec![], 0));
    tickets.create_all((0..20).rev()).await;
    tickets.take(3).await;
    tickets.deindex(&id(1)).await.unwrap();
    assert_eq!(tickets.list(3).await.unwrap(), (ids([0, 2, 3]), 19), "also those that are pending");
    assert_eq!(tickets.list(0).await.unwrap(), (vec![], 19));
    assert_eq!(tickets.list(100).await.unwrap().0.len(), 19);
    assert_eq!(tickets.take(1).await, ids([3]), "looking does not take");
}

async fn operator_sees_the_status_of_a_ticket(setup: Setup) {
    let tickets = setup.with(|rules| rules.pending_timeout = Duration::from_secs(1)).open().await;
    let unknown = tickets.status(&id(9)).await.unwrap();
    assert_eq!((unknown.found, unknown.is_indexed), (StoredTicket::default(), false));
    assert_eq!((unknown.pending_since, unknown.ttl), (None, None));

    tickets.create_all(0..2).await;
    let waiting = tickets.status(&id(0)).await.unwrap();
    assert_eq!(waiting.found, StoredTicket { data: Some(ticket(0).data), assignment: None });
    assert_eq!((waiting.is_indexed, waiting.pending_since), (true, None));
    let ttl = waiting.ttl.unwrap();
    assert!(ttl > Duration::from_secs(500) && ttl <= Duration::from_secs(600), "{ttl:?}");

    let seconds = |time: Timestamp| time.as_millis() / 1000;
    let before = seconds(tickets.clock.now());
    tickets.take(1).await;
    let since = tickets.status(&id(0)).await.unwrap().pending_since;
    let after = seconds(tickets.clock.now());
    // On a machine that takes more than a second for this, the timeout has already passed.
    assert!(since.map_or(after > before, |since| (before..=after).contains(&since)), "{since:?}");
    eventually("it is not pending any more", PATIENCE, async || {
        tickets.pass(Duration::from_millis(200));
        tickets.status(&id(0)).await.unwrap().pending_since.is_none()
    })
    .await;
    assert_eq!(tickets.take(1).await, ids([0]), "what is not pending is handed out");

    let made = group("match", ids([0]));
    assert_eq!(tickets.assign(std::slice::from_ref(&made)).await.unwrap(), [AssignOutcome::Assigned]);
    let assigned = tickets.status(&id(0)).await.unwrap();
    assert_eq!(assigned.found.assignment, Some(only(&made)));
    assert_eq!((assigned.is_indexed, assigned.pending_since), (false, None));
    assert!(assigned.ttl.unwrap() <= tickets.setup.rules.assigned_ttl);
}

/// In a fleet of Directors no engine fetches them.
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_expired_tickets_are_removed_without_an_engine() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let mut raw = tickets.raw().await;
    tickets.create_all(0..1000).await;
    for number in 0..700 {
        raw.ask::<()>(&["DEL", &tickets.key(id(number).as_str())]).await;
    }
    let expired = ExpiredTickets::new(tickets.store.clone());
    eventually("they are removed", PATIENCE, async || {
        expired.tick().await.unwrap();
        tickets.list(0).await.unwrap().1 == 300
    })
    .await;
    assert_eq!(tickets.all().await, ids(700..1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_created_during_a_repair_stays() {
    // A server of its own, because its commands are counted.
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let quick = Setup::script(&redis).open().await;
    let slow = quick.setup.clone().through(proxy.url(&redis.url()), PATIENCE).open().await;
    proxy.delay(Duration::from_millis(300)).await;
    let reading = tokio::spawn(async move { slow.read(&ids([0])).await });
    let raw = quick.raw().await;
    eventually("it has looked", PATIENCE, || {
        let mut raw = raw.clone();
        async move { raw.ask::<String>(&["INFO", "commandstats"]).await.contains("cmdstat_mget:") }
    })
    .await;
    quick.create_all(0..1).await;
    assert!(reading.await.unwrap().unwrap().is_empty());
    assert_eq!(quick.all().await, ids([0]));
    assert_eq!(quick.take(1).await, ids([0]));
}

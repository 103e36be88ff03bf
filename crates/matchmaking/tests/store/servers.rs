//! Servers in addition to the primary: one for assignments, and a replica.

use std::time::Duration;

use matchmaking::store::{
    AfterNotify, AssignOutcome, DeleteOutcome, RedisServers, StoredTicket, UnrecordedBatch, WatchState,
};
use testkit::{Redis, eventually, need};

use crate::setup::{PATIENCE, Raw, Setup, Tickets, connection, data, group, id, ids, matches, only, ticket};

const TIMEOUT: Duration = Duration::from_millis(500);

async fn open(server: &Redis) -> redis_store::Redis {
    redis_store::Redis::open(&server.url(), TIMEOUT).await.unwrap()
}

/// Returns tickets whose assignments are read from another server.
async fn with_assignments(primary: &Redis, assignments: &Redis) -> Tickets {
    let mut setup = Setup::script(primary);
    setup.others = RedisServers { assignments: Some(open(assignments).await), replica: None };
    setup.open().await
}

async fn raw(server: &Redis, tickets: &Tickets) -> Raw {
    let mut setup = Setup::script(server);
    setup.rules = tickets.setup.rules.clone();
    setup.open().await.raw().await
}

#[tokio::test]
async fn assignments_are_copied_to_their_own_server_and_read_there() {
    let (primary, server) = (need!(Redis::shared().await), need!(Redis::private().await));
    let tickets = with_assignments(primary, &server).await;
    let (mut here, mut there) = (tickets.raw().await, raw(&server, &tickets).await);
    tickets.create_all(0..4).await;
    tickets.delete(&id(3)).await.unwrap();
    let (made, refused) = (group("match", ids([0, 1])), group("not", ids([2, 3])));
    let outcomes = tickets.assign(&[made.clone(), refused]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned, AssignOutcome::Refused(id(3))]);

    let key = tickets.key("assign:t00000");
    assert_eq!(there.get(&key).await.unwrap(), only(&made));
    assert_eq!(here.get(&key).await.unwrap(), only(&made), "the truth is with the ticket");
    let life: u64 = there.ask(&["PTTL", &key]).await;
    assert!((50_000..=60_000).contains(&life), "{life}");
    let mut copies: Vec<String> = there.ask(&["KEYS", "*"]).await;
    copies.sort();
    assert_eq!(copies, [key.clone(), tickets.key("assign:t00001")]);

    // The copy is the one that is read.
    there.set(&key, &only(&group("copy", vec![])), 60).await;
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("copy"));
    let WatchState::Assigned(seen) = tickets.watch_states(&ids([0])).await.unwrap().remove(0) else {
        panic!("no copy")
    };
    assert_eq!(connection(&seen), "copy");
    assert_eq!(tickets.find(&id(0)).await.unwrap().data, Some(ticket(0).data));
    assert_eq!(tickets.watch_states(&ids([2, 3])).await.unwrap(), [WatchState::Waiting, WatchState::Gone]);
}

#[tokio::test]
async fn failed_copy_of_an_assignment_is_repeated_by_the_next_notify() {
    let primary = need!(Redis::shared().await);
    let mut server = need!(Redis::private().await);
    let tickets = with_assignments(primary, &server).await;
    tickets.create_all(0..2).await;
    server.kill().await.unwrap();
    let outcomes = tickets.assign(&[group("match", ids(0..2))]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Assigned], "the match is made");
    assert_eq!(tickets.delete(&id(0)).await.unwrap(), DeleteOutcome::AlreadyAssigned, "and stands");
    let entries = tickets.entries().await;
    assert_eq!(matches(&entries[0].matches), [("match".to_owned(), ids(0..2))]);
    let gone = tickets.notify(&entries, AfterNotify::Remove).await.unwrap();
    assert_eq!(gone.len(), 0, "it is kept until its assignments are where they are read");
    assert_eq!(tickets.unrecorded_size().await.unwrap().0, 1);
    assert!(tickets.counter("copies_failed") >= 1);

    server.start_again().await.unwrap();
    eventually("the copy is made", PATIENCE, async || {
        tickets.notify(&entries, AfterNotify::Remove).await.unwrap().len() == 1
    })
    .await;
    assert_eq!(tickets.unrecorded_size().await.unwrap().0, 0);
    for number in 0..2 {
        assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), Some("match"));
    }
    // As after a crash: the first copy wins.
    let later =
        UnrecordedBatch { key: entries[0].key.clone(), matches: group("later", ids(0..2)).encoded_match };
    tickets.notify(&[later], AfterNotify::Remove).await.unwrap();
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("match"));
}

/// Assignments are read from that server, so that no player sees one before the match is recorded.
#[tokio::test]
async fn assignments_are_copied_when_their_players_are_notified() {
    let (primary, server) = (need!(Redis::shared().await), need!(Redis::private().await));
    let tickets = with_assignments(primary, &server).await;
    tickets.create_all(0..2).await;
    let assigned = tickets.store.assign(&[group("match", ids(0..2))]).await.unwrap();
    assert_eq!(tickets.watch_states(&ids(0..2)).await.unwrap(), [WatchState::Waiting, WatchState::Waiting]);
    tickets.notify(&assigned.batches, AfterNotify::Remove).await.unwrap();
    assert_eq!(tickets.connection_of(&id(0)).await.as_deref(), Some("match"));
}

/// A primary, and a replica that follows it.
struct Pair {
    primary: Redis,
    replica: Redis,
    tickets: Tickets,
    at_replica: Raw,
}

async fn pair() -> Result<Pair, testkit::Error> {
    let primary = Redis::builder().arg("--repl-diskless-sync-delay").arg("0").start().await?;
    let replica = Redis::builder()
        .arg("--replicaof")
        .arg("127.0.0.1")
        .arg(primary.addr().port().to_string())
        .start()
        .await?;
    let mut setup = Setup::script(&primary);
    setup.others = RedisServers { assignments: None, replica: Some(open(&replica).await) };
    let tickets = setup.open().await;
    let at_replica = raw(&replica, &tickets).await;
    Ok(Pair { primary, replica, tickets, at_replica })
}

impl Pair {
    async fn has_copied(&self, number: usize) {
        let key = self.tickets.key(id(number).as_str());
        eventually("the replica has the ticket", PATIENCE, || {
            let (mut raw, key) = (self.at_replica.clone(), key.clone());
            async move { raw.get(&key).await.is_some() }
        })
        .await;
    }

    /// Stops the replication.
    async fn cut_off(&mut self) {
        self.at_replica.ask::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    }
}

#[tokio::test]
async fn tickets_missing_on_the_replica_are_read_from_the_primary() {
    let mut pair = need!(pair().await);
    let tickets = pair.tickets.clone();
    tickets.create_all(0..2).await;
    pair.has_copied(1).await;
    pair.cut_off().await;
    tickets.create_all(2..4).await;
    for number in 0..4 {
        assert_eq!(tickets.find(&id(number)).await.unwrap().data, Some(data(number)));
    }
    let read = tickets.read(&ids([3, 0, 2, 1])).await.unwrap();
    assert_eq!(read.iter().map(|ticket| ticket.id.clone()).collect::<Vec<_>>(), ids([3, 0, 2, 1]));
    assert_eq!(tickets.counter("tickets_repaired"), 0);
    // If both have the ticket, the replica's data is used.
    pair.at_replica.set(&tickets.key("t00000"), &data(77), 600).await;
    assert_eq!(tickets.find(&id(0)).await.unwrap().data, Some(data(77)));
    assert_eq!(tickets.read(&ids([0])).await.unwrap()[0].fields.tags, ["tag 77"]);
}

#[tokio::test]
async fn ticket_missing_on_both_servers_is_removed() {
    let mut pair = need!(pair().await);
    let tickets = pair.tickets.clone();
    pair.cut_off().await;
    tickets.create_all(0..2).await;
    tickets.raw().await.ask::<()>(&["DEL", &tickets.key("t00001")]).await;
    assert_eq!(tickets.find(&id(1)).await.unwrap(), StoredTicket::default());
    assert_eq!(tickets.all().await, ids(0..2), "a player's look does not repair");
    assert_eq!(tickets.read(&ids(0..2)).await.unwrap().len(), 1);
    assert_eq!(tickets.counter("tickets_repaired"), 1);
    assert_eq!(tickets.all().await, ids([0]), "what only the replica lacks stays");
}

#[tokio::test]
async fn lagging_replica_does_not_match_a_deleted_ticket() {
    let mut pair = need!(pair().await);
    let tickets = pair.tickets.clone();
    tickets.create_all(0..2).await;
    pair.has_copied(1).await;
    assert_eq!(tickets.take(10).await, ids(0..2));
    pair.cut_off().await;
    tickets.delete(&id(0)).await.unwrap();
    assert_eq!(tickets.read(&ids(0..2)).await.unwrap().len(), 2, "the replica has not heard of it");
    assert_eq!(
        tickets.watch_states(&ids([0])).await.unwrap(),
        [WatchState::Gone],
        "watchers ask the primary"
    );
    let outcomes = tickets.assign(&[group("match", ids(0..2))]).await.unwrap();
    assert_eq!(outcomes, [AssignOutcome::Refused(id(0))]);
}

#[tokio::test]
async fn replica_outage_falls_back_to_the_primary() {
    let mut pair = need!(pair().await);
    let tickets = pair.tickets.clone();
    tickets.create_all(0..3).await;
    pair.has_copied(2).await;
    pair.replica.kill().await.unwrap();
    assert_eq!(tickets.find(&id(0)).await.unwrap().data, Some(data(0)));
    assert_eq!(tickets.take(10).await, ids(0..3));
    assert_eq!(tickets.read(&ids(0..3)).await.unwrap().len(), 3);
    assert_eq!(tickets.counter("tickets_repaired"), 0);
    assert!(pair.primary.pid().is_some());
}

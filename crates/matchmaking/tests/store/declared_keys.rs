//! Every script declares the keys that it touches, so that a cluster can find the node. The suites run with declared keys too.

use std::path::Path;
use std::time::Duration;

use matchmaking::Queue;
use matchmaking::model::MatchId;
use matchmaking::store::{Coordination, Deleted, Outcome, Then};
use testkit::{DeclaredKeys, Proxy, Redis, eventually, need};

use crate::setup::{LEARNED, PATIENCE, Setup, Tickets, data, group, id, ids, sorted, ticket, to, user};

/// The folder of the scripts that are run. Their parts are in a folder of their own.
fn scripts() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/redis/scripts"))
}

/// Runs each step with all that it can reach.
async fn run_every_step(tickets: &Tickets) {
    tickets.create_all(0..8).await;
    // Another program's ticket, which is adopted.
    let mut raw = tickets.raw().await;
    raw.set(&tickets.key(id(8).as_str()), &data(8), 600).await;
    raw.ask::<()>(&["SADD", &tickets.key("allTickets"), id(8).as_str()]).await;
    assert_eq!(tickets.take(20).await, ids(0..9));
    tickets.release(&ids([7])).await.unwrap();
    tickets.deindex(&id(7)).await.unwrap();
    // A ticket whose data is gone, which is repaired.
    raw.ask::<()>(&["DEL", &tickets.key(id(6).as_str())]).await;
    assert_eq!(tickets.read(&ids([5, 6])).await.unwrap().len(), 1);

    let abandoned = MatchId::generate();
    tickets.mark_abandoned(&[abandoned]).await.unwrap();
    let mut groups = [group("one", ids([0, 1])), group("two", ids([1, 2])), group("three", ids([3]))];
    groups[0].fence = Some(MatchId::generate());
    groups[2].fence = Some(abandoned);
    let assigned = tickets.store.assign(&groups).await.unwrap();
    let outcomes = [Outcome::Assigned, Outcome::Refused(id(1)), Outcome::Abandoned];
    assert_eq!(assigned.outcomes, outcomes);
    tickets.notify(&assigned.entries, Then::Keep).await.unwrap();
    assert_eq!(tickets.entries().await.len(), 1);
    tickets.notify(&assigned.entries, Then::Remove).await.unwrap();
    assert_eq!(tickets.entries().await.len(), 0);
    assert_eq!(tickets.delete(&id(4)).await.unwrap(), Deleted::Done);
    assert_eq!(tickets.delete(&id(0)).await.unwrap(), Deleted::Assigned);
    assert_eq!(tickets.all().await, ids([2, 3, 5, 8]));

    run_every_step_of_players(tickets).await;
}

async fn run_every_step_of_players(tickets: &Tickets) {
    let gone = Duration::from_millis(300);
    let waits = Queue { cancel_when_gone: Some(gone), beside_others: true, ..Queue::default() };
    let players = tickets.players([("duel", waits.clone()), ("ranked", waits)]);
    let duel = players.join(user(0), to("duel")).await.unwrap().ticket;
    let ranked = players.join(user(0), to("ranked")).await.unwrap().ticket;
    tickets.play("played", &[&duel]).await;
    let listed = players.tickets(user(0)).await.unwrap().into_iter().map(|ticket| ticket.id);
    assert_eq!(sorted(listed), sorted([duel.id.clone(), ranked.id]));
    let gone_after = [("duel".to_owned(), gone), ("ranked".to_owned(), gone)].into();
    tickets.present(&[user(0), user(1)], &gone_after).await.unwrap();
    eventually("one is cancelled", PATIENCE, async || tickets.sweep().await.unwrap() == 1).await;
    let again = matchmaking::Join { replaces: Some(duel.id), ..to("duel") };
    players.join(user(0), again).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_script_touches_only_the_keys_that_it_declares() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = DeclaredKeys::of(redis, LEARNED).await;
    run_every_step(&Setup::declared(redis, &keys, Coordination::Script).open().await).await;

    // Under the lock, which a step extends that takes longer than a second.
    let tickets = Setup::declared(redis, &keys, Coordination::Lock).open().await;
    run_every_step(&tickets).await;
    let proxy = Proxy::to(keys.addr()).await;
    proxy.delay(Duration::from_millis(600)).await;
    let slow = tickets.setup.clone().through(proxy.url(&keys.url()), Duration::from_secs(10)).open().await;
    slow.release(&ids([0])).await.unwrap();

    keys.assert_none_undeclared();
    keys.assert_all_run(scripts());
}

/// The check above can only fail on a server that tells slots apart.
#[tokio::test(flavor = "multi_thread")]
async fn keys_without_hash_tags_are_in_several_slots() {
    let redis = need!(Redis::shared_cluster().await);
    let tickets = Setup::script(redis).open().await;
    let error = tickets.create(ticket(0)).await.unwrap_err();
    assert!(base::error::chain(&error).contains("CrossSlot"), "{}", base::error::chain(&error));
}

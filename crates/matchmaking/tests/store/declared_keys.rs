//! Every script declares the keys that it touches, so that a cluster can find the node. The other suites also run with
//! declared keys.

use std::path::Path;
use std::time::Duration;

use matchmaking::model::MatchId;
use matchmaking::store::{
    AfterNotify, AssignOutcome, AssignmentGroup, ClaimOutcome, ClaimRequest, Coordination, DeleteOutcome,
    DirectGroup, Holder,
};
use matchmaking::{Member, Parties, PartyConfig, Queue};
use testkit::{DeclaredKeysProxy, FaultProxy, Redis, eventually, need};

use crate::pools::found_ids;
use crate::querying::{everything, names};
use crate::setup::{LEARNED, PATIENCE, Setup, Tickets, data, group, id, ids, sorted, ticket, to, user};

/// The folder of the scripts. Shared parts are in a subfolder.
fn scripts() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/redis/scripts"))
}

/// Runs each step on every branch.
async fn run_every_step(tickets: &Tickets) {
    // The steps record their changes from now on.
    let queries = tickets.queries();
    found_ids(&queries, everything()).await;
    tickets.create_all(0..8).await;
    // A ticket of another program, which is adopted.
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
    let outcomes = [AssignOutcome::Assigned, AssignOutcome::Refused(id(1)), AssignOutcome::Abandoned];
    assert_eq!(assigned.outcomes, outcomes);
    tickets.notify(&assigned.batches, AfterNotify::Keep).await.unwrap();
    assert_eq!(tickets.entries().await.len(), 1);
    tickets.notify(&assigned.batches, AfterNotify::Remove).await.unwrap();
    assert_eq!(tickets.entries().await.len(), 0);
    assert_eq!(tickets.delete(&id(4)).await.unwrap(), DeleteOutcome::Deleted);
    assert_eq!(tickets.delete(&id(0)).await.unwrap(), DeleteOutcome::AlreadyAssigned);
    assert_eq!(tickets.all().await, ids([2, 3, 5, 8]));

    assert_eq!(found_ids(&queries, everything()).await, names([]));
    run_every_step_of_directors(tickets).await;
    crate::ready::run_every_step(tickets).await;
    run_every_player_step(tickets).await;
    run_every_backfill_step(tickets).await;
    run_every_party_step(tickets).await;
}

async fn run_every_backfill_step(tickets: &Tickets) {
    let backfills = tickets.frontend.backfills();
    tickets.create_all(20..24).await;
    let created = crate::backfills::claim_with_new(tickets, ids([20, 21])).await;
    let assignment = Some(proto::openmatch::Assignment::default());
    assert_eq!(backfills.acknowledge(&created.id, assignment).await.unwrap().tickets.len(), 2);
    crate::backfills::claim_with(tickets, created.clone(), ids([22, 23])).await;
    backfills.update(Some(created.clone())).await.unwrap();
    backfills.delete(&created.id).await.unwrap();
    backfills.create(Some(crate::backfills::tagged("another"))).await.unwrap();
    crate::rooms::run_every_step(tickets, [24, 25, 26, 27]).await;
    assert_eq!(tickets.expire_backfills().await.unwrap().backfills, 0);
}

async fn run_every_step_of_directors(tickets: &Tickets) {
    tickets.release_all().await.unwrap();
    let request = |numbers: [usize; 2]| ClaimRequest {
        number: None,
        holder: Holder::default(),
        tickets: ids(numbers),
        backfill: None,
    };
    let outcomes = tickets.claim(&[request([2, 3]), request([3, 8]), request([5, 8])]).await.unwrap();
    let [ClaimOutcome::Claimed(first), ClaimOutcome::Refused(_), ClaimOutcome::Claimed(_)] = outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert_eq!(tickets.release_claim(first, &ids([2, 5])).await.unwrap(), 1);
    assert!(tickets.holders(&ids([3])).await.unwrap()[0].is_some());
    let AssignmentGroup { tickets: members, encoded_match, .. } = group("direct", ids([2, 3]));
    let direct = DirectGroup { tickets: members, assignment: data(0), encoded_match };
    let mixed = DirectGroup { tickets: ids([3, 4, 5, 0]), ..direct.clone() };
    let done = tickets.assign_directly(&[mixed, direct]).await.unwrap();
    assert_eq!(done.obstacles[1], [None, None]);
    tickets.notify(&done.batches, AfterNotify::Remove).await.unwrap();
    tickets.release_all().await.unwrap();
}

async fn run_every_player_step(tickets: &Tickets) {
    let gone = Duration::from_millis(300);
    let waits = Queue { cancel_when_gone: Some(gone), allow_other_queues: true, ..Queue::default() };
    let players = tickets.players([("duel", waits.clone()), ("ranked", waits)]);
    let duel = players.join(user(0), to("duel")).await.unwrap().ticket;
    let ranked = players.join(user(0), to("ranked")).await.unwrap().ticket;
    tickets.play("played", &[&duel]).await;
    let listed = players.tickets(user(0)).await.unwrap().into_iter().map(|ticket| ticket.id);
    assert_eq!(sorted(listed), sorted([duel.id.clone(), ranked.id]));
    let absence_timeouts = [("duel".to_owned(), gone), ("ranked".to_owned(), gone)].into();
    tickets.mark_present(&[user(0), user(1)], &absence_timeouts).await.unwrap();
    eventually("one is cancelled", PATIENCE, async || tickets.cancel_overdue().await.unwrap() == 1).await;
    let again = matchmaking::JoinRequest { replaces: Some(duel.id), ..to("duel") };
    players.join(user(0), again).await.unwrap();
}

async fn run_every_party_step(tickets: &Tickets) {
    let gone = Some(Duration::from_secs(60));
    let players =
        tickets.players([("pair", Queue { max_party: 2, cancel_when_gone: gone, ..Queue::default() })]);
    let day = Duration::from_secs(86_400);
    let config = PartyConfig { ttl: day, max_members: 3, invitation_ttl: day };
    let parties = Parties::new(players.clone(), config, tickets.clock.clone());
    let member = |number| Member { user: user(number), ..Member::default() };
    let (party, _) = parties.create(member(10)).await.unwrap();
    parties.create(member(11)).await.unwrap();
    parties.join(member(11), &party.code).await.unwrap_err();
    parties.leave(user(11)).await.unwrap();
    parties.invite(user(10), user(12)).await.unwrap();
    parties.decline(user(12), party.id.as_str()).await.unwrap();
    parties.join(member(11), &party.code).await.unwrap();
    let alone = players.join(user(11), to("pair")).await.unwrap().ticket;
    parties.queue(user(10), "pair", None).await.unwrap_err();
    tickets.play("alone", &[&alone]).await;
    let pair = parties.queue(user(10), "pair", None).await.unwrap().ticket.id;
    tickets.mark_present(&[user(10), user(11)], &[("pair".to_owned(), day)].into()).await.unwrap();
    parties.join(member(12), &party.code).await.unwrap_err();
    tickets.release_all().await.unwrap();
    crate::parties::ask(tickets, &[(&pair, &[10, 11])]).await;
    parties.kick(user(10), user(11)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_touch_only_declared_keys() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = DeclaredKeysProxy::start(redis, LEARNED).await;
    run_every_step(&Setup::declared(redis, &keys, Coordination::Script).open().await).await;

    // Under the lock, which a step longer than a second extends.
    let tickets = Setup::declared(redis, &keys, Coordination::Lock).open().await;
    run_every_step(&tickets).await;
    let proxy = FaultProxy::to(keys.addr()).await;
    proxy.delay(Duration::from_millis(600)).await;
    let slow = tickets.setup.clone().through(proxy.url(&keys.url()), Duration::from_secs(10)).open().await;
    slow.release(&ids([0])).await.unwrap();

    keys.assert_no_undeclared_keys();
    keys.assert_all_scripts_run(scripts());
}

/// The check above can only fail on a server with several slots.
#[tokio::test(flavor = "multi_thread")]
async fn keys_without_hash_tags_are_in_several_slots() {
    let redis = need!(Redis::shared_cluster().await);
    let tickets = Setup::script(redis).open().await;
    let error = tickets.create(ticket(0)).await.unwrap_err();
    assert!(base::error::chain(&error).contains("CrossSlot"), "{}", base::error::chain(&error));
}

//! Unused servers are given back, and used ones are not.

use std::time::Duration;

use matchmaking::engine::{EngineConfig, Profile, Tick};
use matchmaking::model::TicketId;
use serde_json::json;
use testkit::{FaultProxy, Seed, SqlServer, TestDatabase, eventually, need};
use work_queue::Filter;

use crate::fleet::{DB_TIMEOUT, Fleet, Giving};
use crate::plugins::{assigner, duels, servers};
use crate::world::{World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    used_server_is_not_given_back,
    server_of_a_late_response_is_given_back,
    server_is_given_back_if_a_player_cancels_meanwhile,
    server_of_an_unreadable_item_is_given_back,
    late_engine_cannot_assign_a_swept_match,
    unrecorded_match_is_not_swept,
    every_server_is_used_or_given_back_under_random_failures,
}

/// An engine with a long assigner timeout.
fn patient() -> EngineConfig {
    EngineConfig { assigner_timeout: PATIENCE, ..engine_config() }
}

/// Makes give-back calls until this many matches were given back.
async fn wait_for_given_back(giving: &Giving, fleet: &Fleet, count: usize) {
    eventually(&format!("{count} matches are given back"), PATIENCE, async || {
        giving.give_back.tick().await.unwrap();
        let given_back = fleet.given_back();
        if given_back.len() == count { Ok(()) } else { Err(format!("{given_back:?}")) }
    })
    .await;
}

async fn used_server_is_not_given_back(world: World) {
    let fleet = Fleet::start().await;
    let giving = Giving::start_with(&world, &fleet, patient()).await;
    let [_, _] = world.tickets(&[]).await;
    assert_eq!(giving.engine.tick().await.unwrap().assigned, 2);
    assert_eq!(giving.open().await, 0, "its row went with the record");
    assert_eq!(giving.sweeper.tick().await.unwrap(), 0);
    giving.give_back.tick().await.unwrap();
    fleet.assert_balanced(&giving.used());
    assert!(fleet.given_back().is_empty());
}

async fn server_of_a_late_response_is_given_back(world: World) {
    let fleet = Fleet::start_closed().await;
    let config = EngineConfig { assigner_timeout: Duration::from_millis(900), ..engine_config() };
    let giving = Giving::start_with(&world, &fleet, config).await;
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let tick = giving.engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 0, released: 2, failures: 1 });
    assert_eq!(world.free().await, tickets);
    let ids = fleet.request_ids();
    assert!(ids.len() > 1, "it is asked again within the engine's deadline");
    assert!(ids.iter().all(|id| *id == ids[0]), "under the same id: {ids:?}");
    assert_eq!(fleet.allocated().len(), 1, "and for the same match");

    // The call waits until the service must have finished processing the request.
    assert_eq!(giving.give_back.tick().await.unwrap().finished.postponed, 1);
    assert!(fleet.given_back().is_empty());
    fleet.open();
    wait_for_given_back(&giving, &fleet, 1).await;
    assert_eq!(fleet.reasons(), ["unanswered"]);
    assert_eq!(giving.open().await, 0);

    // The players get another match, with another server.
    eventually("they are matched", PATIENCE, async || {
        giving.engine.tick().await.unwrap();
        world.is_assigned(&tickets[0]).await
    })
    .await;
    fleet.assert_balanced(&giving.used());
}

async fn server_is_given_back_if_a_player_cancels_meanwhile(world: World) {
    let fleet = Fleet::start_closed().await;
    let giving = Giving::start_with(&world, &fleet, patient()).await;
    let [a, b, c, d] = world.tickets(&[]).await;
    let engine = giving.engine.clone();
    let ticking = tokio::spawn(async move { engine.tick().await.unwrap() });
    eventually("it is asked", PATIENCE, async || fleet.requests() > 0).await;
    world.store.delete(&a).await.unwrap();
    fleet.open();
    assert_eq!(ticking.await.unwrap(), Tick { fetched: 4, assigned: 2, released: 2, failures: 0 });
    assert!(world.is_assigned(&c).await && world.is_assigned(&d).await);
    assert_eq!(world.free().await, [b]);
    wait_for_given_back(&giving, &fleet, 1).await;
    assert_eq!(fleet.reasons(), ["refused"]);
    assert_eq!(world.metric("playhouse_matchmaking_matches_abandoned_total{reason=\"refused\"}"), 1.0);
    fleet.assert_balanced(&giving.used());
}

async fn server_of_an_unreadable_item_is_given_back(world: World) {
    let fleet = Fleet::start().await;
    let giving = Giving::start_with(&world, &fleet, patient()).await;
    fleet.edit_answers(|items| items[0] = json!({ "match_id": "?", "connection": "x:1" }));
    let [a, b, c, d] = world.tickets(&[]).await;
    let tick = giving.engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 4, assigned: 2, released: 2, failures: 0 });
    assert!(world.is_assigned(&c).await && world.is_assigned(&d).await);
    assert_eq!(world.free().await, [a, b]);
    wait_for_given_back(&giving, &fleet, 1).await;
    assert_eq!(fleet.reasons(), ["unreadable"]);
    fleet.assert_balanced(&giving.used());
}

/// The engine calls the allocator, stalls, and continues after a sweeper has abandoned its match.
async fn late_engine_cannot_assign_a_swept_match(world: World) {
    let fleet = Fleet::start_closed().await;
    let giving = Giving::start_with(&world, &fleet, patient()).await;
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let engine = giving.engine.clone();
    let ticking = tokio::spawn(async move { engine.tick().await.unwrap() });
    eventually("it is swept", PATIENCE, async || giving.sweeper.tick().await.unwrap() == 1).await;
    assert_eq!(world.metric("playhouse_matchmaking_allocations_open"), 1.0);
    fleet.open();
    assert_eq!(ticking.await.unwrap(), Tick { fetched: 2, assigned: 0, released: 2, failures: 0 });
    assert_eq!(world.free().await, tickets, "its players go on waiting");
    wait_for_given_back(&giving, &fleet, 1).await;
    assert_eq!(fleet.reasons(), ["unsettled"]);
    fleet.assert_balanced(&giving.used());
    assert_eq!(giving.sweeper.tick().await.unwrap(), 0);
    assert_eq!(world.metric("playhouse_matchmaking_allocations_open"), 0.0);
}

async fn unrecorded_match_is_not_swept(world: World) {
    let fleet = Fleet::start().await;
    let giving = Giving::start_with(&world, &fleet, patient()).await;
    giving.be_away(true);
    let [_, _] = world.tickets(&[]).await;
    assert_eq!(giving.engine.tick().await.unwrap().assigned, 2);
    assert_eq!(giving.open().await, 1);
    assert_eq!(giving.sweeper.tick().await.unwrap(), 0);
    assert_eq!(giving.open().await, 1);
    assert_eq!(giving.recover().await, 1, "the recovery is not hindered by the sweeper's mark");
    assert_eq!((giving.open().await, giving.sweeper.tick().await.unwrap()), (0, 0));
    giving.give_back.tick().await.unwrap();
    fleet.assert_balanced(&giving.used());
    assert!(fleet.given_back().is_empty());
}

/// Two engines, a service that fails half of the time, players who cancel, a database with outages, and a sweeper that
/// is always too early.
async fn every_server_is_used_or_given_back_under_random_failures(world: World) {
    let fleet = Fleet::start().await;
    let seed = Seed::new();
    fleet.be_unreliable(Some(seed.choices(0)));
    let giving = Giving::start(&world, &fleet).await;
    let (mut leaving, mut sweeping) = (seed.choices(1), seed.choices(2));
    let mut waiting: Vec<TicketId> = Vec::new();
    for round in 0..30 {
        waiting.extend(world.tickets::<4>(&[]).await);
        let leaves = async {
            tokio::time::sleep(Duration::from_millis(leaving.u64(0..20))).await;
            // A player with a match stays.
            let leaver = &waiting[leaving.usize(0..waiting.len())];
            world.store.delete(leaver).await.unwrap();
        };
        let sweeps = async {
            tokio::time::sleep(Duration::from_millis(sweeping.u64(0..40))).await;
            giving.sweeper.tick().await.unwrap();
        };
        giving.be_away(round % 7 == 3);
        let engines = async { tokio::try_join!(giving.engine.tick(), giving.another_engine.tick()).unwrap() };
        tokio::join!(engines, leaves, sweeps);
    }
    fleet.be_unreliable(None);
    giving.be_away(false);
    eventually("everybody plays or has left", PATIENCE, async || {
        giving.engine.tick().await.unwrap();
        world.free().await.len() < 2
    })
    .await;
    while giving.recover().await > 0 {}
    eventually("every server is used or given back", PATIENCE, async || {
        giving.sweeper.tick().await.unwrap();
        giving.give_back.tick().await.unwrap();
        giving.open().await == 0
            && giving.allocations.queue().list(Filter::Open, 10).await.unwrap().is_empty()
    })
    .await;
    assert!(giving.allocations.queue().list(Filter::Failed, 10).await.unwrap().is_empty());
    fleet.assert_balanced(&giving.used());
    assert!(!fleet.given_back().is_empty() && !giving.used().is_empty());
}

#[tokio::test]
async fn match_without_a_server_leaves_no_row() {
    let (fleet, world) = (Fleet::start().await, World::in_memory());
    let giving = Giving::start_with(&world, &fleet, patient()).await;
    fleet.edit_answers(Vec::clear);
    let [_, _] = world.tickets(&[]).await;
    let tick = giving.engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 0, released: 2, failures: 0 });
    assert_eq!(giving.open().await, 0);
    assert!(giving.allocations.queue().list(Filter::All, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn unreachable_service_gets_no_give_back_call() {
    let (mut fleet, world) = (Fleet::start().await, World::in_memory());
    fleet.url = "http://127.0.0.1:1/fleet".to_owned();
    let giving = Giving::start_with(&world, &fleet, patient()).await;
    let [_, _] = world.tickets(&[]).await;
    assert_eq!(giving.engine.tick().await.unwrap().failures, 1);
    assert_eq!(giving.open().await, 0);
    assert!(giving.allocations.queue().list(Filter::All, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn service_is_not_called_without_the_database() {
    let (fleet, world) = (Fleet::start().await, World::in_memory());
    let giving = Giving::start(&world, &fleet).await;
    giving.db.close().await;
    let tickets: [TicketId; 2] = world.tickets(&[]).await;
    let tick = giving.engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 2, assigned: 0, released: 2, failures: 1 });
    assert_eq!(world.failures("duels", "allocation"), 1.0);
    assert_eq!(world.free().await, tickets);
    assert_eq!(fleet.requests(), 0);
}

/// A static assigner allocates nothing, so nothing is given back when a player cancels meanwhile.
#[tokio::test]
async fn refused_match_without_an_allocator_needs_no_database() {
    let server = need!(SqlServer::shared().await);
    let database = server.database().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let (fleet, world) = (Fleet::start().await, World::in_memory());
    let giving = Giving::start_at(&proxy.url(database.url()), &world, &fleet, patient()).await;
    let store = world.store.clone();
    let assigner = assigner(move |matches| {
        let store = store.clone();
        async move {
            store.delete(&matches[0].tickets[0].id).await?;
            Ok(servers(&matches))
        }
    });
    let profile = Profile { assigner, ..duels() };
    let engine = world.engine_with(vec![profile], patient()).with_allocations(giving.allocations.clone());
    let [_, stays] = world.tickets(&[]).await;
    // Every query to the database now runs into its timeout.
    proxy.half_open().await;
    let tick = tokio::time::timeout(DB_TIMEOUT / 2, engine.tick()).await.expect("it waits for no database");
    assert_eq!(tick.unwrap(), Tick { fetched: 2, assigned: 0, released: 2, failures: 0 });
    assert_eq!(world.free().await, [stays]);
}

/// A failing service is not called for all matches in every tick: all of them would have to be given back.
#[tokio::test]
async fn failing_service_is_called_for_one_match_at_a_time() {
    let (fleet, world) = (Fleet::start_closed().await, World::in_memory());
    let giving = Giving::start(&world, &fleet).await;
    let tickets: [TicketId; 4] = world.tickets(&[]).await;
    assert_eq!(giving.engine.tick().await.unwrap().failures, 1);
    let (requests, allocated) = (fleet.requests(), fleet.allocated().len());
    assert_eq!(allocated, 2);
    let tick = giving.engine.tick().await.unwrap();
    assert_eq!(tick, Tick { fetched: 4, assigned: 0, released: 4, failures: 1 });
    assert_eq!(fleet.requests(), requests, "it rests");
    eventually("it is asked for one match", PATIENCE, async || {
        giving.engine.tick().await.unwrap();
        fleet.allocated().len() == allocated + 1
    })
    .await;
    fleet.open();
    eventually("all are matched", PATIENCE, async || {
        giving.engine.tick().await.unwrap();
        world.is_assigned(&tickets[3]).await
    })
    .await;
    wait_for_given_back(&giving, &fleet, 3).await;
    fleet.assert_balanced(&giving.used());
}

testkit::on_all_stores!(
    abandoned_match_appends_event_and_call_in_one_transaction,
    refused_give_back_is_retried_then_waits_for_an_operator,
);

async fn giving_on(place: &TestDatabase, world: &World, fleet: &Fleet) -> Giving {
    Giving::start_at(&place.url(), world, fleet, patient()).await
}

async fn abandoned_match_appends_event_and_call_in_one_transaction(place: &TestDatabase) {
    let (fleet, world) = (Fleet::start().await, World::in_memory());
    let giving = giving_on(place, &world, &fleet).await;
    fleet.edit_answers(|items| items[0]["connection"] = json!(7));
    let [a, b, _, _] = world.tickets(&[]).await;
    giving.engine.tick().await.unwrap();
    let calls = giving.allocations.queue().list(Filter::Open, 10).await.unwrap();
    let events = giving.events().await;
    assert_eq!((calls.len(), events.len()), (1, 1));
    let expected = json!({
        "match_id": calls[0].id, "match_profile": "duels", "assigner": "fleet",
        "ticket_ids": [a.as_str(), b.as_str()], "reason": "unreadable",
    });
    assert_eq!(events[0], expected);
    wait_for_given_back(&giving, &fleet, 1).await;
    assert!(fleet.given_back().contains_key(&calls[0].id.to_string()));
    // The sweeper does not give it back a second time.
    assert_eq!(giving.sweeper.tick().await.unwrap(), 0);
    assert_eq!(giving.events().await.len(), 1);
}

async fn refused_give_back_is_retried_then_waits_for_an_operator(place: &TestDatabase) {
    let (fleet, world) = (Fleet::start().await, World::in_memory());
    let giving = giving_on(place, &world, &fleet).await;
    fleet.edit_answers(|items| items[0]["connection"] = json!(""));
    fleet.refuse_give_backs(true);
    let [_, _] = world.tickets(&[]).await;
    giving.engine.tick().await.unwrap();
    let failed = eventually("its attempts are used up", PATIENCE, async || {
        giving.give_back.tick().await.unwrap();
        giving.allocations.queue().list(Filter::Failed, 10).await.unwrap().pop()
    })
    .await;
    assert!(failed.cause.as_ref().is_some_and(|cause| cause.contains("500")), "{failed:?}");
    fleet.refuse_give_backs(false);
    giving.allocations.queue().retry(failed.number).await.unwrap().unwrap();
    wait_for_given_back(&giving, &fleet, 1).await;
    fleet.assert_balanced(&giving.used());
}

//! From the store's outbox to the bus.

use std::sync::Arc;
use std::time::Duration;

use base::id::ProcessId;
use buffa::{Message, MessageField};
use bus::{Bus, BusUrl, Event, Stored};
use config::{Setting, Value};
use matchmaking::Relay;
use matchmaking::engine::{Fifo, Profile};
use matchmaking::model::{MatchId, TicketId};
use matchmaking::store::Group;
use proto::openmatch::Assignment;
use proto::playhouse::{MatchMade, MatchesMade};
use runtime::Drain;
use serde_json::{Value as Json, json};
use testkit::{Nats, eventually, need};

use crate::plugins::duels;
use crate::world::World;
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    every_match_becomes_one_event_under_its_own_id,
    an_event_names_the_players_of_the_match_each_once,
    a_match_of_an_older_process_is_told_without_its_players,
    what_a_dead_relay_had_taken_is_told_by_another_and_not_before,
    telling_again_does_not_store_twice,
    two_relays_share_the_work,
    a_relay_at_work_tells_at_once_and_once_more_before_it_stops,
    events_wait_while_the_bus_is_away_and_go_out_when_it_is_back,
}

fn config(url: &str, name: &str) -> bus::Config {
    bus::Config {
        url: BusUrl::parse(&Value::Text(url.to_owned())).unwrap(),
        timeout: Duration::from_millis(500),
        stream: name.to_owned(),
        subjects: name.to_owned(),
        max_age: Duration::from_secs(3600),
        replicas: 1,
        max_in_flight: 1000,
        memory_events: 100_000,
        credentials: None,
        monitor_url: None,
    }
}

async fn bus() -> Bus {
    Bus::open(&config("memory:", "playhouse")).await.unwrap()
}

fn stored(bus: &Bus) -> Vec<Stored> {
    match bus {
        Bus::Memory(memory) => memory.read_after(0, 100_000),
        Bus::Nats(_) => unreachable!("the tests read the embedded bus"),
    }
}

fn told(bus: &Bus) -> Vec<Json> {
    stored(bus).iter().map(|event| serde_json::from_slice(&event.body).unwrap()).collect()
}

fn relay(world: &World, bus: &Bus) -> Relay {
    let made = world.engine(Vec::new()).made();
    Relay::new(ProcessId::generate(), world.store.clone(), bus.clone(), made, world.metrics.clone())
}

/// Makes so many matches, each in a tick of its own.
async fn make_matches(world: &World, count: usize) -> Vec<[TicketId; 2]> {
    let engine = world.engine(vec![duels()]);
    let mut matches = Vec::new();
    for _ in 0..count {
        matches.push(world.tickets(&[]).await);
        assert_eq!(engine.tick().await.unwrap().assigned, 2);
    }
    matches
}

async fn every_match_becomes_one_event_under_its_own_id(world: World) {
    let (bus, engine) = (bus().await, world.engine(vec![duels()]));
    let relay = relay(&world, &bus);
    assert_eq!(relay.tick().await.unwrap(), 0);
    // Two matches in one tick, and one in the next.
    let [a, b, c, d] = world.tickets(&[]).await;
    engine.tick().await.unwrap();
    let [e, f] = world.tickets(&[]).await;
    engine.tick().await.unwrap();
    assert_eq!(world.store.events_waiting().await.unwrap(), 2);
    assert_eq!(relay.tick().await.unwrap(), 3);
    assert_eq!(relay.tick().await.unwrap(), 0);
    assert_eq!(world.store.events_waiting().await.unwrap(), 0);
    let told = told(&bus);
    assert_eq!(told.len(), 3, "{told:#?}");
    for (event, pair) in told.iter().zip([[&a, &b], [&c, &d], [&e, &f]]) {
        let connection = world.connection(pair[0]).await.unwrap();
        let id = event["id"].as_str().unwrap();
        assert_eq!(connection, format!("{id}.test:1"), "the id of the event is that of the match");
        let expected = json!({
            "specversion": "1.0",
            "id": id,
            "type": "playhouse.match.made.v1",
            "source": "/playhouse/matchmaking",
            "time": world.clock.now().to_rfc3339(),
            "partitionkey": id,
            "datacontenttype": "application/json",
            "data": {
                "match_id": id,
                "match_profile": "duels",
                "match_function": "fifo",
                "ticket_ids": [pair[0].as_str(), pair[1].as_str()],
                "user_ids": [],
                "connection": connection,
            },
        });
        assert_eq!(*event, expected);
    }
    assert!(stored(&bus).iter().all(|event| event.subject == "playhouse.match.made.v1"));
    assert_eq!(world.metric("playhouse_matchmaking_events_relayed_total"), 3.0);
    assert_eq!(world.metric("playhouse_matchmaking_events_waiting"), 0.0);
}

async fn an_event_names_the_players_of_the_match_each_once(world: World) {
    const PLAYERS: [&str; 2] =
        ["01990000-0000-7000-8000-000000000001", "01990000-0000-7000-8000-000000000002"];
    let bus = bus().await;
    // The second one plays with two tickets, one is nobody's, and one says something else.
    for user in [PLAYERS[1], PLAYERS[0], PLAYERS[1], "", "guest 7"] {
        if user.is_empty() {
            world.ticket(&[]).await
        } else {
            world.ticket_of(user).await
        };
    }
    let fives = Profile { name: "fives".into(), function: Arc::new(Fifo::new(5)), ..duels() };
    let engine = world.engine(vec![fives]);
    assert_eq!(engine.tick().await.unwrap().assigned, 5);
    assert_eq!(relay(&world, &bus).tick().await.unwrap(), 1);
    let event = &told(&bus)[0];
    assert_eq!(event["data"]["user_ids"], json!(PLAYERS));
    assert_eq!(event["data"]["ticket_ids"].as_array().unwrap().len(), 5);
}

/// It wrote an entry in which there are no players.
async fn a_match_of_an_older_process_is_told_without_its_players(world: World) {
    let bus = bus().await;
    let id = MatchId::generate().to_string();
    let ticket = world.ticket_of("01990000-0000-7000-8000-000000000001").await;
    let assignment = Assignment { connection: "old.test:1".to_owned(), ..Default::default() };
    let made = MatchMade {
        match_id: id.clone(),
        ticket_ids: vec![ticket.to_string()],
        assignment: MessageField::some(assignment.clone()),
        ..Default::default()
    };
    let made = MatchesMade { matches: vec![made], ..Default::default() }.encode_to_bytes();
    let assignment = assignment.encode_to_bytes();
    world.store.assign(&[Group { tickets: vec![ticket], assignment, made }]).await.unwrap();
    assert_eq!(relay(&world, &bus).tick().await.unwrap(), 1);
    let event = &told(&bus)[0];
    assert_eq!((&event["id"], &event["data"]["user_ids"]), (&json!(id), &json!([])));
}

async fn what_a_dead_relay_had_taken_is_told_by_another_and_not_before(world: World) {
    let bus = bus().await;
    make_matches(&world, 3).await;
    let dead = world.store.take_events("dead", 2, Duration::from_secs(3600)).await.unwrap();
    assert_eq!(dead.len(), 2);
    // By default a relay may take half a minute.
    assert_eq!(relay(&world, &bus).tick().await.unwrap(), 1);
    assert_eq!(world.store.events_waiting().await.unwrap(), 2);
    assert_eq!(world.metric("playhouse_matchmaking_events_waiting"), 2.0);
    assert_eq!(relay(&world, &bus).with_retake(Duration::ZERO).tick().await.unwrap(), 2);
    assert_eq!(world.store.events_waiting().await.unwrap(), 0);
    assert_eq!(told(&bus).len(), 3);
}

async fn telling_again_does_not_store_twice(world: World) {
    let bus = bus().await;
    make_matches(&world, 2).await;
    // A relay that stopped after it had published and before it was done.
    let event = |made: &MatchMade| Event {
        id: made.match_id.parse().unwrap(),
        subject: "match.made.v1".to_owned(),
        kind: "playhouse.match.made.v1".to_owned(),
        source: "/playhouse/matchmaking".to_owned(),
        time: world.clock.now(),
        key: None,
        traceparent: None,
        data: bus::Json::of(&json!({})).unwrap(),
    };
    let entries = world.store.take_events("dead", 10, Duration::from_secs(3600)).await.unwrap();
    let matches =
        entries.iter().flat_map(|entry| MatchesMade::decode_from_slice(&entry.made).unwrap().matches);
    let events: Vec<Event> = matches.map(|made| event(&made)).collect();
    assert!(bus.publish(&events).await.iter().all(Result::is_ok));
    assert_eq!(told(&bus).len(), 2);
    assert_eq!(relay(&world, &bus).with_retake(Duration::ZERO).tick().await.unwrap(), 2);
    assert_eq!(world.store.events_waiting().await.unwrap(), 0);
    assert_eq!(told(&bus).len(), 2, "the bus knows them by their ids");
}

async fn two_relays_share_the_work(world: World) {
    let bus = bus().await;
    make_matches(&world, 50).await;
    let relays = [relay(&world, &bus), relay(&world, &bus)];
    let mut sum = 0;
    while sum < 50 {
        let (one, two) = tokio::join!(relays[0].tick(), relays[1].tick());
        let now = one.unwrap() + two.unwrap();
        assert!(now > 0, "stuck at {sum}");
        sum += now;
    }
    assert_eq!(sum, 50, "an event was told twice");
    assert_eq!(told(&bus).len(), 50);
    assert_eq!(world.store.events_waiting().await.unwrap(), 0);
}

async fn a_relay_at_work_tells_at_once_and_once_more_before_it_stops(world: World) {
    let bus = bus().await;
    let engine = world.engine(vec![duels()]);
    let id = ProcessId::generate();
    let relay = Relay::new(id, world.store.clone(), bus.clone(), engine.made(), world.metrics.clone());
    let drain = Drain::new();
    let running = tokio::spawn({
        let (relay, drain) = (relay.clone(), drain.clone());
        async move { relay.run(drain).await.unwrap() }
    });
    for count in 1..=5 {
        let [_, _] = world.tickets(&[]).await;
        engine.tick().await.unwrap();
        // Less than the time after which it looks by itself.
        eventually("the event", Duration::from_millis(700), async || told(&bus).len() == count).await;
    }
    drain.request();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    make_matches(&world, 1).await;
    relay.run(drain).await.unwrap();
    assert_eq!(told(&bus).len(), 6);
}

async fn events_wait_while_the_bus_is_away_and_go_out_when_it_is_back(world: World) {
    let mut nats = need!(Nats::private().await);
    let bus = Bus::open(&config(&nats.url(), "PLAYHOUSE")).await.unwrap();
    // It does not wait for the time after which others may take over.
    let relay = relay(&world, &bus);
    make_matches(&world, 3).await;
    nats.kill().await.unwrap();
    assert!(relay.tick().await.is_err());
    assert_eq!(world.store.events_waiting().await.unwrap(), 3);
    make_matches(&world, 1).await;
    nats.start_again().await.unwrap();
    eventually("the events are told", PATIENCE, async || {
        let _ = relay.tick().await;
        world.store.events_waiting().await.unwrap() == 0
    })
    .await;
    let client = nats.streams().connect().await;
    let answer = client.request("$JS.API.STREAM.INFO.PLAYHOUSE", Default::default()).await.unwrap();
    let stream: Json = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(stream["state"]["messages"], 4, "{stream}");
}

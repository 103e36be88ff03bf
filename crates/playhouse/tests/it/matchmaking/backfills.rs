//! Backfills of real processes that are killed: no ticket is lost, assigned twice, or in two events.

use std::collections::BTreeSet;

use ::matchmaking::model::BackfillId;
use ::matchmaking::store::{BackfillChange, ClaimOutcome, ClaimRequest, Holder, NewBackfill};
use buffa::MessageField;
use proto::openmatch::Backfill;
use testkit::Seed;

use super::*;
use crate::crashes::assert_killed;

/// Claims tickets for a match, as the process of a Director does.
async fn claim(store: &Store, backfill: BackfillChange, tickets: Vec<TicketId>) -> bool {
    let request = ClaimRequest { number: None, holder: Holder::default(), tickets, backfill: Some(backfill) };
    matches!(store.claim(&[request]).await.unwrap()[..], [ClaimOutcome::Claimed(_)])
}

fn new_backfill() -> NewBackfill {
    let created = Moment::from(Clock::system().now());
    let id = BackfillId::generate(created);
    let time = buffa_types::google::protobuf::Timestamp {
        seconds: created.micros() / 1_000_000,
        ..Default::default()
    };
    let fixed = Backfill { id: id.to_string(), create_time: MessageField::some(time), ..Default::default() };
    NewBackfill { id, fixed: fixed.encode_to_bytes(), fields: Bytes::new(), persistent: Bytes::new() }
}

/// Acknowledges a backfill as its game server does. Returns the listed tickets, or `None` without an answer.
pub(super) async fn acknowledge(client: &Client, address: &str, id: &BackfillId) -> Option<BTreeSet<String>> {
    let url = format!("http://{address}/v1/frontendservice/backfills/{id}/acknowledge");
    let body = json!({ "assignment": { "connection": format!("{id}.test:7777") } });
    let response = client.post(url).json(&body).timeout(PATIENCE).send().await.ok()?;
    let is_success = response.status().is_success();
    let answer: Value = response.json().await.ok()?;
    let tickets = answer["tickets"].as_array().into_iter().flatten();
    is_success.then(|| tickets.filter_map(|ticket| ticket["id"].as_str().map(ToOwned::to_owned)).collect())
}

/// Reads events until these tickets are in matches. Returns the backfill of each ticket, empty for an engine's match.
async fn backfills_on_the_bus(url: &str, tickets: usize) -> HashMap<String, String> {
    let stream =
        jetstream::new(async_nats::connect(url).await.unwrap()).get_stream("PLAYHOUSE").await.unwrap();
    let consumer = stream.create_consumer(pull::Config::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut found = HashMap::new();
    while found.len() < tickets {
        let next = tokio::time::timeout(PATIENCE, messages.next()).await;
        let message =
            next.unwrap_or_else(|_| panic!("{} of {tickets} tickets", found.len())).unwrap().unwrap();
        message.ack().await.unwrap();
        let event: Value = serde_json::from_slice(&message.payload).unwrap();
        let backfill = event["data"]["backfill_id"].as_str().unwrap_or_default();
        for ticket in event["data"]["ticket_ids"].as_array().unwrap() {
            let ticket = ticket.as_str().unwrap().to_owned();
            let twice = found.insert(ticket, backfill.to_owned());
            assert_eq!(twice, None, "a ticket is in two events: {event}");
        }
    }
    found
}

/// The next acknowledgement finishes what the killed process began.
#[tokio::test(flavor = "multi_thread")]
async fn frontend_killed_at_any_point_of_an_acknowledgement_loses_and_doubles_no_ticket() {
    let matchmaking = need!(Matchmaking::start().await);
    let (store, client) = (matchmaking.store().await, Client::new());
    let next = matchmaking.serve("matchmaking-frontend");
    let next = addresses(&next).await["open_match"].clone();
    let mut expected = HashMap::new();
    for point in [
        "matchmaking.backfill.acknowledged",
        "matchmaking.backfill.assigned",
        "matchmaking.recorded",
        "matchmaking.notified",
        "matchmaking.backfill.notified",
    ] {
        let doomed = matchmaking.program("matchmaking-frontend").env("TESTKIT_FAULT", point).start().unwrap();
        let address = addresses(&doomed).await["open_match"].clone();
        let tickets = make_tickets(&store, 2).await;
        let backfill = new_backfill();
        let id = backfill.id.clone();
        assert!(claim(&store, BackfillChange::Create(backfill), tickets.clone()).await);
        assert_eq!(acknowledge(&client, &address, &id).await, None, "{point}");
        assert_killed(&doomed).await;

        let all: BTreeSet<String> = tickets.iter().map(ToString::to_string).collect();
        assert_eq!(acknowledge(&client, &next, &id).await, Some(all), "{point}: the answer that was lost");
        assert_eq!(acknowledge(&client, &next, &id).await, Some(BTreeSet::new()), "{point}");
        let seen = store.watch_states(&tickets).await.unwrap();
        assert!(seen.iter().all(|seen| matches!(seen, WatchState::Assigned(_))), "{point}: {seen:?}");
        expected.extend(tickets.iter().map(|ticket| (ticket.to_string(), id.to_string())));
    }
    let _recovery = matchmaking.serve("matchmaking-engine,outbox-relay");
    assert_eq!(backfills_on_the_bus(&matchmaking.fleet.nats.url(), expected.len()).await, expected);
    eventually("nothing is left", PATIENCE, async || store.unrecorded_size().await.unwrap().0 == 0).await;
}

/// Match functions, game servers, cancelled tickets and expired backfills, while frontends are killed at random.
#[tokio::test(flavor = "multi_thread")]
async fn frontends_killed_while_game_servers_acknowledge_lose_and_double_no_ticket() {
    const BACKFILLS: usize = 40;
    let seed = Seed::new();
    let matchmaking = need!(Matchmaking::start().await);
    let (store, client) = (matchmaking.store().await, Client::new());
    let running: Vec<RunningProgram> = (0..3).map(|_| matchmaking.serve("matchmaking-frontend")).collect();
    let mut frontends = Vec::new();
    for running in &running {
        frontends.push(addresses(running).await["open_match"].clone());
    }
    let server = async |number: usize| {
        let mut rng = seed.choices(number as u64);
        let new = new_backfill();
        let id = new.id.clone();
        let (mut created, mut listed, mut generation) = (Vec::new(), BTreeSet::new(), 0);
        let mut change = BackfillChange::Create(new);
        for _ in 0..8 {
            let tickets = make_tickets(&store, 2).await;
            created.extend(tickets.iter().cloned());
            if claim(&store, change, tickets).await {
                generation += 1;
            }
            change = BackfillChange::Update { id: id.clone(), generation, fields: Bytes::new() };
            // The game server asks another process if one does not answer.
            for _ in 0..2 {
                let address = &frontends[rng.usize(0..frontends.len())];
                listed.extend(acknowledge(&client, address, &id).await.into_iter().flatten());
            }
        }
        (id, created, listed)
    };
    let kill = async {
        for doomed in &running[..2] {
            tokio::time::sleep(Duration::from_millis(150)).await;
            doomed.kill();
        }
    };
    let (servers, ()) = tokio::join!(join_all((0..BACKFILLS).map(server)), kill);
    drop(frontends);

    // An engine makes matches of the tickets that no game server took.
    let _engine = matchmaking.serve("matchmaking-engine,outbox-relay");
    let created: usize = servers.iter().map(|(_, created, _)| created.len()).sum();
    let found = backfills_on_the_bus(&matchmaking.fleet.nats.url(), created).await;
    let joined = found.values().filter(|backfill| !backfill.is_empty()).count();
    assert!(joined > created / 4, "only {joined} of {created} tickets joined a backfill");
    for (id, created, listed) in &servers {
        let own: BTreeSet<String> = created.iter().map(ToString::to_string).collect();
        let joined = found.iter().filter(|(_, backfill)| **backfill == id.to_string());
        let joined: BTreeSet<String> = joined.map(|(ticket, _)| ticket.clone()).collect();
        assert!(joined.is_subset(&own) && listed.is_subset(&joined), "{id}: {listed:?} {joined:?}");
        for ticket in created {
            let assignment = store.find(ticket).await.unwrap().assignment.unwrap();
            let connection = proto::openmatch::Assignment::decode_from_slice(&assignment).unwrap().connection;
            assert_eq!(connection == format!("{id}.test:7777"), joined.contains(ticket.as_str()), "{ticket}");
        }
    }
    eventually("nothing is left", PATIENCE, async || store.unrecorded_size().await.unwrap().0 == 0).await;
}

/// Two players begin a match for three. Game servers have a minute to acknowledge.
const COOP: &str = r#"
[matchmaking.profiles.coop]
function = "rules"
rules = """
name = "coop"
[teams.heroes]
min = 2
max = 3
"""
assigner = "one_each"
backfill = true
"#;

/// The next process finishes what the killed engine began: a match has exactly one backfill, and a ticket that joined it waits there.
#[tokio::test(flavor = "multi_thread")]
async fn engine_killed_while_it_fills_matches_loses_and_doubles_nothing() {
    let matchmaking = need!(Matchmaking::start().await);
    let config = CONFIG.replace("pending_timeout = \"2s\"", "pending_timeout = \"60s\"");
    let config = config.replace("[matchmaking.profiles.duel]\nplayers = 2\nassigner = \"one_each\"\n", COOP);
    assert!(config.contains("60s") && config.contains("coop"), "{config}");
    let file = matchmaking.folder.path().join("playhouse.toml");
    std::fs::write(file, format!("{config}{}", shop::operators())).unwrap();
    let (store, client) = (matchmaking.store_with(Duration::from_secs(60)).await, Client::new());
    let frontend = matchmaking.serve("matchmaking-frontend");
    let frontend = addresses(&frontend).await["open_match"].clone();
    let mut expected = HashMap::new();
    for point in ["matchmaking.assigned", "matchmaking.recorded", "matchmaking.notified"] {
        let doomed = matchmaking.program("matchmaking-engine").env("TESTKIT_FAULT", point).start().unwrap();
        let first = make_tickets(&store, 2).await;
        assert_killed(&doomed).await;
        let seen = store.watch_states(&first).await.unwrap();
        assert!(seen.iter().all(|seen| matches!(seen, WatchState::Assigned(_))), "{point}: {seen:?}");
        let backfills = store.live_backfills().await.unwrap();
        let [id] = &backfills[..] else { panic!("{point}: {backfills:?}") };

        let doomed = matchmaking
            .program("matchmaking-engine")
            .env("TESTKIT_FAULT", "matchmaking.backfill.joined")
            .start()
            .unwrap();
        let late = make_tickets(&store, 1).await.remove(0);
        assert_killed(&doomed).await;
        let waiting = store.backfill_status(id).await.unwrap().unwrap().waiting;
        assert_eq!(waiting, std::slice::from_ref(&late), "{point}");
        let seen = store.watch_states(std::slice::from_ref(&late)).await.unwrap();
        assert_eq!(seen, [WatchState::Waiting]);
        assert_eq!(acknowledge(&client, &frontend, id).await, Some([late.to_string()].into()), "{point}");
        assert_eq!(acknowledge(&client, &frontend, id).await, None, "{point}: it is full");
        assert_eq!(store.live_backfills().await.unwrap(), [], "{point}");
        expected.extend(first.iter().map(|ticket| (ticket.to_string(), String::new())));
        expected.insert(late.to_string(), id.to_string());
    }
    let _recovery = matchmaking.serve("matchmaking-engine,outbox-relay");
    assert_eq!(backfills_on_the_bus(&matchmaking.fleet.nats.url(), expected.len()).await, expected);
    eventually("nothing is left", PATIENCE, async || store.unrecorded_size().await.unwrap().0 == 0).await;
}

/// Engines begin and fill matches, game servers acknowledge, and engines and a frontend are killed at random.
#[tokio::test(flavor = "multi_thread")]
async fn engines_killed_while_matches_are_filled_lose_and_double_no_ticket() {
    const TICKETS: usize = 240;
    let seed = Seed::new();
    let matchmaking = need!(Matchmaking::start().await);
    let config = CONFIG.replace("[matchmaking.profiles.duel]\nplayers = 2\nassigner = \"one_each\"\n", COOP);
    let config = config.replace("pending_timeout = \"2s\"", "pending_timeout = \"8s\"");
    let file = matchmaking.folder.path().join("playhouse.toml");
    std::fs::write(file, format!("{config}{}", shop::operators())).unwrap();
    let (store, client) = (matchmaking.store_with(Duration::from_secs(8)).await, Client::new());
    let engines: Vec<RunningProgram> =
        (0..3).map(|_| matchmaking.serve("matchmaking-engine,matchmaking-frontend,outbox-relay")).collect();
    let mut frontends = Vec::new();
    for engine in &engines {
        frontends.push(addresses(engine).await["open_match"].clone());
    }
    let mut rng = seed.choices(0);
    let mut created: Vec<TicketId> = Vec::new();
    let kills = [TICKETS / 3, 2 * TICKETS / 3];
    while created.len() < TICKETS {
        let count = rng.i64(1..4);
        created.extend(make_tickets(&store, count).await);
        for id in store.live_backfills().await.unwrap() {
            acknowledge(&client, &frontends[rng.usize(0..frontends.len())], &id).await;
        }
        for (doomed, at) in engines.iter().zip(kills) {
            if created.len() >= at {
                doomed.kill();
            }
        }
    }
    let created = std::sync::Mutex::new(created);
    // A last ticket may find no other one, and no open place.
    let is_assigned = async |id: &TicketId| {
        matches!(store.watch_states(std::slice::from_ref(id)).await.unwrap()[..], [WatchState::Assigned(_)])
    };
    eventually("all tickets have a match", PATIENCE, async || {
        for id in store.live_backfills().await.unwrap() {
            acknowledge(&client, &frontends[2], &id).await;
        }
        let mut waiting = 0;
        let ids = created.lock().unwrap().clone();
        for id in &ids {
            waiting += usize::from(!is_assigned(id).await);
        }
        if waiting == 1 {
            let another = make_tickets(&store, 1).await;
            created.lock().unwrap().extend(another);
        }
        waiting == 0
    })
    .await;
    let count = created.lock().unwrap().len();
    let found = backfills_on_the_bus(&matchmaking.fleet.nats.url(), count).await;
    let mut joined: HashMap<&str, usize> = HashMap::new();
    for backfill in found.values().filter(|backfill| !backfill.is_empty()) {
        *joined.entry(backfill).or_default() += 1;
    }
    assert!(joined.values().all(|joined| *joined == 1), "a match for three has one place: {joined:?}");
    assert!(!joined.is_empty(), "nobody joined a match");
    eventually("nothing is left", PATIENCE, async || store.unrecorded_size().await.unwrap().0 == 0).await;
}

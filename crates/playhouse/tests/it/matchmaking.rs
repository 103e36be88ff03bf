//! Matchmaking of real processes on real servers that are killed, emptied and stopped.

mod backfills;
mod directors;
mod python_director;
mod recording;
mod rules_at_run_time;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use ::matchmaking::model::{Moment, TicketId};
use ::matchmaking::store::{
    AssignOutcome, AssignmentGroup, Assignments, Coordination, NewTicket, RedisServers, Rules, TicketEvent,
    WatchState,
};
use ::matchmaking::{Metrics, Store};
use async_nats::jetstream;
use async_nats::jetstream::consumer::pull;
use base::Clock;
use buffa::Message;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use redis_store::RedisStore;
use reqwest::Client;
use serde_json::json;
use testkit::{Folder, eventually, need};

use super::fleet::Fleet;
use super::*;

/// Short timeouts, so that tickets held by a killed engine return soon.
const CONFIG: &str = r#"
[db]
migrate = true
[matchmaking]
pending_timeout = "2s"
assigned_ttl = "10m"
watch_check = "200ms"
function_timeout = "500ms"
evaluator_timeout = "500ms"
assigner_timeout = "500ms"
fetch_limit = 2000
[matchmaking.profiles.duel]
players = 2
assigner = "one_each"
[matchmaking.assigners.one_each]
addresses = ["{match_id}.test:7777"]
"#;

struct Matchmaking {
    fleet: Fleet,
    folder: Folder,
}

impl Matchmaking {
    async fn start() -> Result<Self, testkit::Error> {
        let (fleet, folder) = (Fleet::start().await?, Folder::fresh().unwrap());
        std::fs::write(folder.path().join("playhouse.toml"), format!("{CONFIG}{}", shop::operators()))
            .unwrap();
        Ok(Self { fleet, folder })
    }

    fn serve(&self, roles: &str) -> RunningProgram {
        self.program(roles).start().unwrap()
    }

    fn program(&self, roles: &str) -> Program {
        let config = self.folder.path().join("playhouse.toml");
        self.fleet.serve(&["--config", config.to_str().unwrap(), "--roles", roles])
    }

    /// Opens the ticket store of the processes.
    async fn store(&self) -> Store {
        self.store_with(Duration::from_secs(2)).await
    }

    /// Opens the ticket store of processes with this `pending_timeout`.
    async fn store_with(&self, pending_timeout: Duration) -> Store {
        let url = config::Setting::parse(&config::Value::Text(self.fleet.redis.url())).unwrap();
        let redis_store = RedisStore::open(&redis_store::Config { url, timeout: PATIENCE }).await.unwrap();
        let rules = Rules {
            key_prefix: String::new(),
            coordination: Coordination::Script,
            pending_timeout,
            assigned_ttl: Duration::from_secs(600),
            check_tickets: true,
            max_unrecorded: 64 << 20,
        };
        let metrics = Metrics::new(&mut prometheus_client::registry::Registry::default());
        Store::new(&redis_store, RedisServers::default(), rules, Clock::system(), metrics)
    }
}

/// Creates waiting tickets without a frontend.
async fn make_tickets(store: &Store, count: i64) -> Vec<TicketId> {
    let now = Moment::from(Clock::system().now()).micros();
    let made = (0..count).map(async |number| {
        let created = Moment::from_micros(now + number);
        let id = TicketId::generate(created);
        let data = proto::openmatch::Ticket { id: id.to_string(), ..Default::default() }.encode_to_bytes();
        let ttl = Duration::from_secs(600);
        store.create(NewTicket { id: id.clone(), created, ttl, data }).await.unwrap();
        id
    });
    join_all(made).await
}

/// Reads matches from the event stream: their tickets by event id.
async fn matches_on_the_bus(url: &str, count: usize) -> HashMap<String, Vec<String>> {
    let stream =
        jetstream::new(async_nats::connect(url).await.unwrap()).get_stream("PLAYHOUSE").await.unwrap();
    let consumer = stream.create_consumer(pull::Config::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut matches = HashMap::new();
    while matches.len() < count {
        let next = tokio::time::timeout(PATIENCE, messages.next()).await;
        let message =
            next.unwrap_or_else(|_| panic!("{} of {count} matches", matches.len())).unwrap().unwrap();
        message.ack().await.unwrap();
        let event: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(event["id"], event["data"]["match_id"]);
        let tickets: Vec<String> = serde_json::from_value(event["data"]["ticket_ids"].clone()).unwrap();
        matches.insert(event["id"].as_str().unwrap().to_owned(), tickets);
    }
    matches
}

/// Returns the number of rounds and of tickets per round. `PLAYHOUSE_TEST_KILLS=20x50000` makes a long run.
fn rounds() -> (u32, i64) {
    let size = std::env::var("PLAYHOUSE_TEST_KILLS").unwrap_or_else(|_| "3x4000".to_owned());
    let (rounds, tickets) = size.split_once('x').unwrap();
    (rounds.parse().unwrap(), tickets.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_killed_under_load_loses_and_duplicates_nothing() {
    let matchmaking = need!(Matchmaking::start().await);
    let store = matchmaking.store().await;
    let (rounds, count) = rounds();
    let mut expected = 0;
    for round in 0..rounds {
        let tickets = make_tickets(&store, count).await;
        expected += tickets.len() / 2;
        let started = Instant::now();
        let roles = "matchmaking-engine,outbox-relay";
        let engines = [matchmaking.serve(roles), matchmaking.serve(roles)];
        let waiting = async || store.list(0).await.unwrap().1;
        // Kills at another point between the first and the last ticket in each round.
        let kill_at = u64::try_from(count).unwrap() * u64::from(9 - round % 9) / 10;
        eventually("some tickets are matched", PATIENCE * 3, async || waiting().await <= kill_at).await;
        engines[0].kill();
        eventually("all tickets are matched", PATIENCE * 3, async || {
            let waiting = waiting().await;
            if waiting == 0 { Ok(()) } else { Err(format!("{waiting} left")) }
        })
        .await;
        // A clean stop means that nothing is pending or unrecorded.
        engines[1].sigterm();
        assert_eq!(engines[1].wait(PATIENCE).await.code(), Some(0));
        eprintln!(
            "round {round}: {count} tickets, {} ms, starts and a kill included",
            started.elapsed().as_millis()
        );

        // The other engine has recorded the matches that the killed one had not.
        let mut players: HashMap<String, usize> = HashMap::new();
        for (id, seen) in tickets.iter().zip(store.watch_states(&tickets).await.unwrap()) {
            let WatchState::Assigned(assignment) = seen else { panic!("{id} was lost") };
            let assignment = proto::openmatch::Assignment::decode_from_slice(&assignment).unwrap();
            *players.entry(assignment.connection).or_default() += 1;
        }
        assert_eq!(players.len(), tickets.len() / 2);
        assert!(players.values().all(|players| *players == 2), "a match without its two players");
    }

    let relay = matchmaking.serve("matchmaking-engine,outbox-relay");
    let matches = matches_on_the_bus(&matchmaking.fleet.nats.url(), expected).await;
    let mut seen = HashSet::new();
    for id in matches.into_values().flatten() {
        assert!(seen.insert(id.clone()), "{id} is in two matches");
    }
    assert_eq!(seen.len(), expected * 2);
    eventually("every match is recorded", PATIENCE * 3, async || {
        store.unrecorded_size().await.unwrap().0 == 0
    })
    .await;
    relay.sigterm();
    assert_eq!(relay.wait(PATIENCE).await.code(), Some(0));
}

async fn create(address: &str) -> (u16, Value) {
    let url = format!("http://{address}/v1/frontendservice/tickets");
    let response = Client::new().post(url).json(&json!({ "ticket": {} })).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn matchmaking_recovers_from_an_emptied_redis_within_two_seconds() {
    let mut matchmaking = need!(Matchmaking::start().await);
    let running = matchmaking.serve("matchmaking-frontend,matchmaking-engine");
    let addresses = addresses(&running).await;
    let (address, admin) = (addresses["open_match"].clone(), addresses["admin"].clone());
    let (_, unmatched) = create(&address).await;
    let tickets = format!("http://{address}/v1/frontendservice/tickets");
    let watch = format!("{tickets}/{}/assignments", unmatched["id"].as_str().unwrap());
    let mut watching = Client::new().get(watch).send().await.unwrap();

    matchmaking.fleet.redis.kill().await.unwrap();
    let (status, problem) = create(&address).await;
    assert_eq!((status, problem["code"].as_u64()), (503, Some(14)), "{problem}");
    assert!(problem["message"].as_str().unwrap().contains("try again"), "{problem}");
    // Long enough for backoffs to grow.
    eventually("the push loop was restarted 7 times", PATIENCE, async || {
        let (_, metrics) = get(format!("http://{admin}/metrics")).await;
        let restarts = "playhouse_loop_restarts_total{loop=\"matchmaking-pushes\"} ";
        let count =
            metrics.as_str()?.lines().find_map(|line| line.strip_prefix(restarts)?.parse::<u32>().ok())?;
        (count >= 7).then_some(())
    })
    .await;
    matchmaking.fleet.redis.start_again().await.unwrap();

    let back = Instant::now();
    let ids = eventually("two tickets are created", PATIENCE, async || {
        let pair = [create(&address).await, create(&address).await];
        pair.iter().all(|(status, _)| *status == 200).then(|| pair.map(|(_, ticket)| ticket["id"].clone()))
    })
    .await;
    for id in ids {
        let id = id.as_str().unwrap().to_owned();
        eventually("it is assigned", PATIENCE, async || {
            let (_, ticket) = get(format!("{tickets}/{id}")).await;
            ticket["assignment"]["connection"].is_string().then_some(()).ok_or(ticket.to_string())
        })
        .await;
    }
    // The watcher of the lost ticket gets NOT_FOUND.
    let update = tokio::time::timeout(PATIENCE, watching.chunk()).await.unwrap().unwrap().unwrap();
    let update: Value = serde_json::from_slice(&update).unwrap();
    assert_eq!(update["error"]["code"], 5, "{update}");
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_tickets_can_be_read_or_deleted_as_tickets() {
    let matchmaking = need!(Matchmaking::start().await);
    let running = matchmaking.serve("matchmaking-frontend");
    let address = addresses(&running).await["open_match"].clone();
    let keyspace = matchmaking.fleet.redis.namespace();
    let mut redis = keyspace.connect().await;
    let (_, ticket) = create(&address).await;
    let store = matchmaking.store().await;
    make_tickets(&store, 2).await;
    // Keys of another service on the same Redis.
    for (key, value) in [("session-7", "secret"), ("assign:somebody", "somewhere")] {
        redis::cmd("SET").arg(key).arg(value).exec_async(&mut redis).await.unwrap();
    }
    redis::cmd("HSET").arg("players").arg("a").arg("b").exec_async(&mut redis).await.unwrap();
    let mut keys = async || -> Vec<String> {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.unwrap();
        keys.sort();
        keys
    };
    let before = keys().await;
    let own = ticket["id"].as_str().unwrap();
    let client = Client::new();
    for key in before
        .iter()
        .filter(|key| key.as_str() != own && key.len() != 20)
        .map(String::as_str)
        .chain(["fetchTicketsLock"])
    {
        let url = format!("http://{address}/v1/frontendservice/tickets/{key}");
        let read = client.get(&url).send().await.unwrap();
        assert!(read.status().is_client_error(), "{key}: {read:?}");
        assert!(
            client.get(format!("{url}/assignments")).send().await.unwrap().status().is_client_error(),
            "{key}"
        );
        client.delete(url).send().await.unwrap();
    }
    assert_eq!(keys().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn watcher_gets_an_assignment_whose_push_was_lost() {
    let matchmaking = need!(Matchmaking::start().await);
    let running = matchmaking.serve("matchmaking-frontend");
    let address = addresses(&running).await["open_match"].clone();
    let (store, keyspace) = (matchmaking.store().await, matchmaking.fleet.redis.namespace());
    let mut redis = keyspace.connect().await;
    for round in 0..5 {
        let (_, ticket) = create(&address).await;
        let id = ticket["id"].as_str().unwrap();
        let watch = format!("http://{address}/v1/frontendservice/tickets/{id}/assignments");
        let mut watching = Client::new().get(watch).send().await.unwrap();
        // No frontend is subscribed when the assignment is written.
        let cut: u64 =
            redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query_async(&mut redis).await.unwrap();
        let assignment =
            proto::openmatch::Assignment { connection: format!("round-{round}"), ..Default::default() };
        let tickets = vec![TicketId::parse(id).unwrap()];
        let group = AssignmentGroup {
            claim: None,
            fence: None,
            tickets,
            assignments: Assignments::Shared(assignment.encode_to_bytes()),
            encoded_match: Bytes::new(),
            room: None,
        };
        assert_eq!(store.assign(&[group]).await.unwrap().outcomes, [AssignOutcome::Assigned]);
        let update = tokio::time::timeout(PATIENCE, watching.chunk()).await.unwrap().unwrap().unwrap();
        let update: Value = serde_json::from_slice(&update).unwrap();
        assert_eq!(update["result"]["assignment"]["connection"], format!("round-{round}"), "{cut} cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn assignment_with_unordered_extensions_is_sent_once() {
    let matchmaking = need!(Matchmaking::start().await);
    let running = matchmaking.serve("matchmaking-frontend");
    let address = addresses(&running).await["open_match"].clone();
    let (_, ticket) = create(&address).await;
    let id = ticket["id"].as_str().unwrap();
    let mut assignment = proto::openmatch::Assignment { connection: "here".to_owned(), ..Default::default() };
    assignment.extensions =
        (0..12).map(|number| (format!("extension-{number}"), Default::default())).collect();
    let tickets = vec![TicketId::parse(id).unwrap()];
    let group = AssignmentGroup {
        claim: None,
        fence: None,
        tickets,
        assignments: Assignments::Shared(assignment.encode_to_bytes()),
        encoded_match: Bytes::new(),
        room: None,
    };
    matchmaking.store().await.assign(&[group]).await.unwrap();
    let watch = format!("http://{address}/v1/frontendservice/tickets/{id}/assignments");
    let mut watching = Client::new().get(watch).send().await.unwrap();
    let update = tokio::time::timeout(PATIENCE, watching.chunk()).await.unwrap().unwrap();
    assert!(update.is_some());
    // Longer than several watch checks.
    let again = tokio::time::timeout(Duration::from_millis(1200), watching.chunk()).await;
    assert!(again.is_err(), "sent again: {again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_process_ends_watches_with_unavailable() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    let address = addresses(&running).await["open_match"].clone();
    let (_, ticket) = create(&address).await;
    let watch =
        format!("http://{address}/v1/frontendservice/tickets/{}/assignments", ticket["id"].as_str().unwrap());
    let mut watching = Client::new().get(watch).send().await.unwrap();
    running.sigterm();
    let update = tokio::time::timeout(PATIENCE, watching.chunk()).await.unwrap().unwrap().unwrap();
    let update: Value = serde_json::from_slice(&update).unwrap();
    assert_eq!(update["error"]["code"], 14, "{update}");
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}

/// The promise is fewer than 50 commands per second for ten thousand watchers. A test opens fewer; `cargo xtask bench matchmaking`
/// checks the full number.
#[tokio::test(flavor = "multi_thread")]
async fn idle_watchers_cost_redis_almost_nothing() {
    const WATCHERS: usize = 300;
    let matchmaking = need!(Matchmaking::start().await);
    let running = matchmaking.serve("matchmaking-frontend");
    let addresses = addresses(&running).await;
    let client = Client::builder().http2_prior_knowledge().build().unwrap();
    let tickets = format!("http://{}/v1/frontendservice/tickets", addresses["open_match"]);
    let watching = (0..WATCHERS).map(async |_| {
        let ticket: Value =
            client.post(&tickets).json(&json!({ "ticket": {} })).send().await.unwrap().json().await.unwrap();
        client.get(format!("{tickets}/{}/assignments", ticket["id"].as_str().unwrap())).send().await.unwrap()
    });
    let watching = join_all(watching).await;
    assert!(watching.iter().all(|response| response.status() == 200));
    let keyspace = matchmaking.fleet.redis.namespace();
    let mut redis = keyspace.connect().await;
    let mut commands = async || -> u64 {
        let info: String = redis::cmd("INFO").arg("stats").query_async(&mut redis).await.unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
        line.parse().unwrap()
    };
    let (before, started) = (commands().await, Instant::now());
    // Long enough for several watch checks.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rate = (commands().await - before) as f64 / started.elapsed().as_secs_f64();
    assert!(rate < 50.0, "{rate:.1} commands per second");
    drop(watching);
}

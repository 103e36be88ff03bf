//! A game service that allocates servers, and the components that give them back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, extract};
use base::id::ProcessId;
use base::{Backoff, Clock};
use buffa::Message;
use config::{Setting, Value as Text};
use db::{Db, DbUrl};
use fastrand::Rng;
use futures::FutureExt;
use futures::future::BoxFuture;
use matchmaking::allocation::{GiveBackWorker, Sweeper};
use matchmaking::engine::{EngineConfig, Profile, Webhook, WebhookConfig};
use matchmaking::store::UnrecordedBatch;
use matchmaking::{Allocations, Engine, MatchRecorder, Recorder};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use proto::playhouse::MatchesMade;
use serde_json::{Value, json};
use testkit::TestDatabase;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::plugins::duels;
use crate::world::{World, engine_config};

/// Longer than an engine waits for a response.
const LATE: Duration = Duration::from_millis(300);

/// A service that counts the servers it has allocated.
#[derive(Clone)]
pub(crate) struct Fleet {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    /// Releases held responses.
    gate: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    /// Servers by match. Entries stay after they are given back.
    allocated: BTreeMap<String, String>,
    given_back: BTreeMap<String, String>,
    requests: Vec<String>,
    edit: Option<fn(&mut Vec<Value>)>,
    refuses_give_backs: bool,
    /// If set, makes the service fail, respond late and send garbage, by these random choices.
    unreliable: Option<Rng>,
}

impl Fleet {
    /// Starts a service that responds at once.
    pub(crate) async fn start() -> Self {
        let fleet = Self::start_closed().await;
        fleet.open();
        fleet
    }

    /// Starts a service that allocates, but holds its responses until it is opened.
    pub(crate) async fn start_closed() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/fleet", listener.local_addr().unwrap());
        let fleet = Self { url, state: Arc::default(), gate: Arc::new(Semaphore::new(0)) };
        let router = Router::new().route("/fleet", post(serve)).with_state(fleet.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        fleet
    }

    pub(crate) fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    /// Edits later responses.
    pub(crate) fn edit_answers(&self, edit: fn(&mut Vec<Value>)) {
        self.state.lock().unwrap().edit = Some(edit);
    }

    pub(crate) fn refuse_give_backs(&self, refuses: bool) {
        self.state.lock().unwrap().refuses_give_backs = refuses;
    }

    pub(crate) fn be_unreliable(&self, choices: Option<Rng>) {
        self.state.lock().unwrap().unreliable = choices;
    }

    /// Returns how many times servers were requested.
    pub(crate) fn requests(&self) -> usize {
        self.state.lock().unwrap().requests.len()
    }

    /// Returns the `webhook-id` of each request for servers.
    pub(crate) fn request_ids(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    pub(crate) fn allocated(&self) -> BTreeSet<String> {
        self.state.lock().unwrap().allocated.keys().cloned().collect()
    }

    /// Returns the matches that were given back, with the reason.
    pub(crate) fn given_back(&self) -> BTreeMap<String, String> {
        self.state.lock().unwrap().given_back.clone()
    }

    pub(crate) fn reasons(&self) -> Vec<String> {
        self.given_back().into_values().collect()
    }

    /// Checks that every server is either used or given back, and none is both.
    pub(crate) fn assert_balanced(&self, used: &BTreeSet<String>) {
        let given_back: BTreeSet<String> = self.given_back().into_keys().collect();
        assert!(used.is_disjoint(&given_back), "given back while in use: {used:?} {given_back:?}");
        let settled: BTreeSet<String> = used.union(&given_back).cloned().collect();
        let leaked: Vec<String> = self.allocated().difference(&settled).cloned().collect();
        assert!(leaked.is_empty(), "leaked: {leaked:?}");
        assert!(used.is_subset(&self.allocated()));
    }

    fn allocate(&self, id: &str, question: &Value) -> Vec<Value> {
        let mut state = self.state.lock().unwrap();
        state.requests.push(id.to_owned());
        let mut items = Vec::new();
        for asked in question["matches"].as_array().unwrap() {
            let id = asked["match_id"].as_str().unwrap().to_owned();
            let server = state.allocated.entry(id.clone()).or_insert_with(|| format!("{id}.fleet:1"));
            items.push(json!({ "match_id": id, "connection": server }));
        }
        if let Some(edit) = state.edit {
            edit(&mut items);
        }
        items
    }

    fn take_back(&self, message: &Value) -> StatusCode {
        let mut state = self.state.lock().unwrap();
        if state.refuses_give_backs {
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        let data = &message["data"];
        let text = |name: &str| data[name].as_str().unwrap().to_owned();
        assert_eq!(text("match_profile"), "duels");
        assert_eq!(data["ticket_ids"].as_array().unwrap().len(), 2);
        state.given_back.insert(text("match_id"), text("reason"));
        StatusCode::NO_CONTENT
    }
}

async fn serve(extract::State(fleet): extract::State<Fleet>, headers: HeaderMap, body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).unwrap();
    match message["type"].as_str().unwrap() {
        "match.assign" => {
            let items = fleet.allocate(headers["webhook-id"].to_str().unwrap(), &message);
            fleet.gate.acquire().await.unwrap().forget();
            let choice = fleet.state.lock().unwrap().unreliable.as_mut().map(|choices| choices.u8(0..10));
            match choice.unwrap_or(10) {
                0..=2 => return StatusCode::BAD_GATEWAY.into_response(),
                3 => tokio::time::sleep(LATE).await,
                4 => return axum::Json(json!({ "assignments": [7] })).into_response(),
                5 => return "garbled".into_response(),
                _ => {}
            }
            axum::Json(json!({ "assignments": items })).into_response()
        }
        "match.abandoned" => fleet.take_back(&message).into_response(),
        other => panic!("{other}"),
    }
}

/// An engine that calls the fleet, with the components that give servers back.
pub(crate) struct Giving {
    pub(crate) engine: Engine,
    pub(crate) another_engine: Engine,
    pub(crate) allocations: Allocations,
    pub(crate) sweeper: Sweeper,
    pub(crate) give_back: GiveBackWorker,
    pub(crate) outbox: Outbox,
    pub(crate) db: Db,
    notes: Arc<Notes>,
    _place: Option<TestDatabase>,
}

/// Records matches, and remembers them.
#[derive(Debug)]
struct Notes {
    recorder: Recorder,
    used: Mutex<BTreeSet<String>>,
    /// Whether recording fails.
    is_away: AtomicBool,
}

impl MatchRecorder for Notes {
    fn record<'a>(&'a self, entry: &'a UnrecordedBatch) -> BoxFuture<'a, bool> {
        let made = MatchesMade::decode_from_slice(&entry.matches).unwrap().matches;
        self.used.lock().unwrap().extend(made.into_iter().map(|made| made.match_id));
        if self.is_away.load(Ordering::Relaxed) {
            return std::future::ready(false).boxed();
        }
        self.recorder.record(entry)
    }
}

/// The timeout of a database that does not answer.
pub(crate) const DB_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after its request an unanswered match is given back.
const ABANDON_AFTER: Duration = Duration::from_secs(2);

impl Giving {
    pub(crate) async fn start(world: &World, fleet: &Fleet) -> Self {
        Self::start_with(world, fleet, engine_config()).await
    }

    pub(crate) async fn start_with(world: &World, fleet: &Fleet, config: EngineConfig) -> Self {
        let place = TestDatabase::sqlite().unwrap();
        let giving = Self::start_at(&place.url(), world, fleet, config).await;
        Self { _place: Some(place), ..giving }
    }

    pub(crate) async fn start_at(url: &str, world: &World, fleet: &Fleet, config: EngineConfig) -> Self {
        let url = DbUrl::parse(&Text::Text(url.to_owned())).unwrap();
        let db_config = db::Config { url, max_connections: 4, acquire_timeout: DB_TIMEOUT, migrate: true };
        let db = Db::open(&db_config).await.unwrap();
        db.migrate(&[outbox::MIGRATIONS, matchmaking::MIGRATIONS]).await.unwrap();
        let queues = work_queue::Metrics::new(&mut Registry::default(), outbox::TABLE);
        let (clock, metrics) = (world.clock.clone(), world.metrics.clone());
        let outbox = Outbox::new(db.clone(), queue_config(), queues, clock.clone());
        let allocations =
            Allocations::new(db.clone(), outbox.clone(), queue_config(), clock, metrics.clone());
        let profile = profile(&fleet.url, &config, &world.clock);
        let give_back = GiveBackWorker::new(
            ProcessId::generate(),
            &allocations,
            [profile.assigner.clone()],
            ABANDON_AFTER,
        );
        let recorder =
            Recorder::new(ProcessId::generate(), world.store.clone(), db.clone(), outbox.clone(), metrics);
        let recorder = recorder.with_recover_after(Duration::ZERO);
        let notes = Arc::new(Notes { recorder, used: Mutex::default(), is_away: AtomicBool::new(false) });
        let engine = || {
            let (store, profiles) = (world.store.clone(), vec![profile.clone()]);
            let engine = world.engine_recording(notes.clone(), store, profiles, config.clone());
            engine.with_allocations(allocations.clone())
        };
        let (engine, another_engine) = (engine(), engine());
        // Everything requested before this millisecond is overdue.
        let sweeper = Sweeper::new(allocations.clone(), world.store.clone(), Duration::ZERO);
        Self { engine, another_engine, allocations, sweeper, give_back, outbox, db, notes, _place: None }
    }

    /// Returns the matches that were made.
    pub(crate) fn used(&self) -> BTreeSet<String> {
        self.notes.used.lock().unwrap().clone()
    }

    /// Makes recording fail, or work again.
    pub(crate) fn be_away(&self, is_away: bool) {
        self.notes.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Records the unrecorded matches.
    pub(crate) async fn recover(&self) -> usize {
        self.notes.recorder.tick().await.unwrap().batches
    }

    /// Returns the number of open allocations.
    pub(crate) async fn open(&self) -> i64 {
        let mut connection = self.db.connection().await.unwrap();
        const COUNT: &str = "SELECT COUNT(*) FROM matchmaking_allocation";
        let (open,): (i64,) = db::on!(connection, raw => sqlx::query_as(COUNT).fetch_one(raw).await.unwrap());
        open
    }

    /// Returns the data of the events about abandoned matches in the outbox.
    pub(crate) async fn events(&self) -> Vec<Value> {
        let rows = self.outbox.queue().list(work_queue::Filter::All, 100).await.unwrap();
        let data = |row: &work_queue::ItemView| {
            let mut parts = serde_json::Deserializer::from_slice(&row.payload).into_iter::<Value>();
            let head = parts.next()?.ok()?;
            parts.next()?.ok().filter(|_| head["kind"] == "playhouse.match.abandoned.v1")
        };
        rows.iter().filter_map(data).collect()
    }
}

fn profile(url: &str, config: &EngineConfig, clock: &Clock) -> Profile {
    let config = WebhookConfig {
        name: "fleet".into(),
        url: url.parse().unwrap(),
        abandon_url: url.parse().unwrap(),
        secrets: None,
        timeout: config.assigner_timeout / 3,
    };
    Profile { assigner: Arc::new(Webhook::new(config, clock.clone()).unwrap()), ..duels() }
}

fn queue_config() -> work_queue::Config {
    work_queue::Config {
        workers: 1,
        batch: 100,
        poll: Duration::from_millis(20),
        lease: Duration::from_secs(60),
        max_attempts: 20,
        retry: Backoff::new(Duration::from_millis(10), Duration::from_millis(20)),
        retention: Duration::from_secs(3600),
    }
}

//! Recording: from the store of tickets to the outbox.

use std::sync::Arc;
use std::time::Duration;

use base::id::ProcessId;
use base::{Backoff, Clock};
use buffa::{Message, MessageField};
use bus::{Bus, BusUrl, StoredEvent};
use bytes::Bytes;
use config::{Setting, Value};
use db::{Db, DbUrl};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use matchmaking::engine::{Fifo, Profile};
use matchmaking::model::{MatchId, TicketId};
use matchmaking::store::{
    AfterNotify, AssignmentGroup, Assignments, BatchRange, TicketEvent, UnrecordedBatch,
};
use matchmaking::{Engine, MatchRecorder, MatchmakingAdmin, Recorder, RecoveryReport};
use outbox::{Outbox, Relay};
use prometheus_client::registry::Registry;
use proto::openmatch::Assignment;
use proto::playhouse::{MatchMade, MatchesMade};
use runtime::Drain;
use serde_json::{Value as Json, json};
use testkit::{FaultProxy, SqlServer, TestDatabase, eventually, need};
use tokio::sync::Notify;
use work_queue::{Filter, State};

use crate::plugins::duels;
use crate::world::{World, engine_config};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    every_match_becomes_one_event_under_its_own_id,
    event_names_each_player_of_the_match_once,
    match_of_an_older_version_is_published_without_players,
    players_are_notified_only_after_their_match_is_recorded,
    recovery_records_and_notifies_matches_of_a_dead_engine,
    recording_a_batch_again_changes_nothing,
    unreadable_batch_becomes_a_failed_row_with_its_bytes,
    batches_refused_by_sql_block_no_later_match,
    two_recorders_record_each_match_once,
    without_sql_players_are_notified_and_matches_recorded_later,
    engines_pause_while_too_much_is_unrecorded_and_resume_afterwards,
}

/// A database and a bus.
pub(crate) struct Sql {
    db: Db,
    outbox: Outbox,
    bus: Bus,
    _place: Option<TestDatabase>,
}

impl Sql {
    pub(crate) async fn embedded() -> Self {
        let place = TestDatabase::sqlite().unwrap();
        let url = place.url();
        Self::open(&url, Some(place)).await
    }

    async fn open(url: &str, place: Option<TestDatabase>) -> Self {
        let url = DbUrl::parse(&Value::Text(url.to_owned())).unwrap();
        let config =
            db::Config { url, max_connections: 4, acquire_timeout: Duration::from_secs(2), migrate: true };
        let db = Db::open(&config).await.unwrap();
        db.migrate(&[outbox::MIGRATIONS]).await.unwrap();
        let config = outbox::Config {
            workers: 1,
            batch: 100,
            poll: Duration::from_millis(20),
            lease: Duration::from_secs(60),
            max_attempts: 3,
            retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(50)),
            retention: Duration::from_secs(3600),
        };
        let metrics = outbox::Metrics::new(&mut Registry::default(), outbox::TABLE);
        let bus = bus::Config {
            url: BusUrl::parse(&Value::Text("memory:".to_owned())).unwrap(),
            timeout: Duration::from_millis(500),
            stream: "PLAYHOUSE".to_owned(),
            subjects: "playhouse".to_owned(),
            max_age: Duration::from_secs(3600),
            replicas: 1,
            max_in_flight: 1000,
            memory_events: 100_000,
            credentials: None,
            monitor_url: None,
        };
        let outbox = Outbox::new(db.clone(), config, metrics, Clock::system());
        Self { db, outbox, bus: Bus::open(&bus).await.unwrap(), _place: place }
    }

    pub(crate) fn recorder(&self, world: &World) -> Recorder {
        let id = ProcessId::generate();
        Recorder::new(id, world.store.clone(), self.db.clone(), self.outbox.clone(), world.metrics.clone())
            .with_recover_after(Duration::ZERO)
    }

    fn engine(&self, world: &World) -> Engine {
        let recorder = Arc::new(self.recorder(world));
        world.engine_recording(recorder, world.store.clone(), vec![duels()], engine_config())
    }

    fn stored(&self) -> Vec<StoredEvent> {
        match &self.bus {
            Bus::Memory(memory) => memory.read_after(0, 100_000),
            Bus::Nats(_) => unreachable!("the tests read the embedded bus"),
        }
    }

    /// Publishes the outbox, and returns everything published so far.
    pub(crate) async fn published(&self) -> Vec<Json> {
        let relay = Relay::new(ProcessId::generate(), self.outbox.clone(), self.bus.clone());
        while relay.tick().await.unwrap().claimed > 0 {}
        self.stored().iter().map(|event| serde_json::from_slice(&event.body).unwrap()).collect()
    }

    /// Runs a statement.
    pub(crate) async fn execute(&self, text: &'static str) {
        let mut tx = self.db.begin().await.unwrap();
        db::on!(tx, connection => { sqlx::raw_sql(text).execute(connection).await.unwrap(); });
        tx.commit().await.unwrap();
    }

    pub(crate) async fn rows(&self) -> usize {
        self.outbox.queue().list(Filter::All, 10_000).await.unwrap().len()
    }
}

/// Assigns this many matches, each in its own tick, with an engine that dies before it notifies players.
pub(crate) async fn assign_without_notifying(world: &World, count: usize) -> Vec<[TicketId; 2]> {
    let mut matches = Vec::new();
    for _ in 0..count {
        let tickets = world.tickets(&[]).await;
        world.store.assign(&[group(&tickets)]).await.unwrap();
        matches.push(tickets);
    }
    matches
}

fn group(tickets: &[TicketId]) -> AssignmentGroup {
    let id = MatchId::generate().to_string();
    let assignment = Assignment { connection: format!("{id}.test:1"), ..Default::default() };
    let made = MatchMade {
        match_id: id,
        ticket_ids: tickets.iter().map(ToString::to_string).collect(),
        assignment: MessageField::some(assignment.clone()),
        ..Default::default()
    };
    let made = MatchesMade { matches: vec![made], ..Default::default() }.encode_to_bytes();
    AssignmentGroup {
        claim: None,
        fence: None,
        tickets: tickets.to_vec(),
        assignments: Assignments::Shared(assignment.encode_to_bytes()),
        encoded_match: made,
        room: None,
    }
}

pub(crate) async fn unrecorded_size(world: &World) -> u64 {
    world.store.unrecorded_size().await.unwrap().0
}

async fn every_match_becomes_one_event_under_its_own_id(world: World) {
    let sql = Sql::embedded().await;
    let engine = sql.engine(&world);
    // Two matches in one tick, and one in the next.
    let [a, b, c, d] = world.tickets(&[]).await;
    engine.tick().await.unwrap();
    let [e, f] = world.tickets(&[]).await;
    engine.tick().await.unwrap();
    assert_eq!(unrecorded_size(&world).await, 0);
    assert_eq!(sql.rows().await, 2, "one row for each step");
    let published = sql.published().await;
    assert_eq!(published.len(), 3, "{published:#?}");
    for (event, pair) in published.iter().zip([[&a, &b], [&c, &d], [&e, &f]]) {
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
                "profile_version": 0,
                "match_function": "fifo",
                "ticket_ids": [pair[0].as_str(), pair[1].as_str()],
                "user_ids": [],
                "connection": connection,
            },
        });
        assert_eq!(*event, expected);
    }
    assert!(sql.stored().iter().all(|event| event.subject == "playhouse.match.made.v1"));
    assert_eq!(world.metric("playhouse_matchmaking_matches_recorded_total"), 3.0);
}

async fn event_names_each_player_of_the_match_once(world: World) {
    const PLAYERS: [&str; 2] =
        ["01990000-0000-7000-8000-000000000001", "01990000-0000-7000-8000-000000000002"];
    let sql = Sql::embedded().await;
    // The second player has two tickets, one ticket has no player, and one has an invalid user id.
    for user in [PLAYERS[1], PLAYERS[0], PLAYERS[1], "", "guest 7"] {
        if user.is_empty() {
            world.ticket(&[]).await
        } else {
            world.ticket_of(user).await
        };
    }
    let fives = Profile { name: "fives".into(), function: Arc::new(Fifo::new(5)), ..duels() };
    let recorder = Arc::new(sql.recorder(&world));
    let engine = world.engine_recording(recorder, world.store.clone(), vec![fives], engine_config());
    assert_eq!(engine.tick().await.unwrap().assigned, 5);
    let event = &sql.published().await[0];
    assert_eq!(event["data"]["user_ids"], json!(PLAYERS));
    assert_eq!(event["data"]["ticket_ids"].as_array().unwrap().len(), 5);
}

/// The older version wrote a batch without players, and has notified them.
async fn match_of_an_older_version_is_published_without_players(world: World) {
    let sql = Sql::embedded().await;
    let ticket = world.ticket_of("01990000-0000-7000-8000-000000000001").await;
    let assigned = world.store.assign(&[group(&[ticket])]).await.unwrap();
    world.store.notify(&assigned.batches, AfterNotify::Keep).await.unwrap();
    assert_eq!(sql.recorder(&world).tick().await.unwrap().batches, 1);
    let event = &sql.published().await[0];
    assert_eq!(event["data"]["user_ids"], json!([]));
}

/// A recorder that blocks until it is released.
#[derive(Debug)]
struct Gate {
    behind: Recorder,
    reached: Notify,
    open: Notify,
}

impl MatchRecorder for Gate {
    fn record<'a>(&'a self, entry: &'a UnrecordedBatch) -> BoxFuture<'a, bool> {
        async move {
            self.reached.notify_one();
            self.open.notified().await;
            self.behind.record(entry).await
        }
        .boxed()
    }
}

async fn players_are_notified_only_after_their_match_is_recorded(world: World) {
    let sql = Sql::embedded().await;
    let behind = sql.recorder(&world);
    let gate = Arc::new(Gate { behind, reached: Notify::new(), open: Notify::new() });
    let engine = world.engine_recording(gate.clone(), world.store.clone(), vec![duels()], engine_config());
    let [a, _b] = world.tickets(&[]).await;
    let mut pushes = world.store.ticket_events().await.unwrap();
    let ticking = tokio::spawn(async move { engine.tick().await.unwrap() });
    tokio::time::timeout(PATIENCE, gate.reached.notified()).await.unwrap();
    assert_eq!(unrecorded_size(&world).await, 1);
    assert!(tokio::time::timeout(Duration::from_millis(100), pushes.next()).await.is_err(), "notified early");
    if world.store.is_embedded() {
        assert_eq!(world.connection(&a).await, None, "seen early");
    }
    gate.open.notify_one();
    assert_eq!(ticking.await.unwrap().assigned, 2);
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap();
    assert!(matches!(push, Some(TicketEvent::Assigned(_))), "{push:?}");
    assert!(world.is_assigned(&a).await);
    assert_eq!((sql.rows().await, unrecorded_size(&world).await), (1, 0));
}

async fn recovery_records_and_notifies_matches_of_a_dead_engine(world: World) {
    let sql = Sql::embedded().await;
    let mut pushes = world.store.ticket_events().await.unwrap();
    let matches = assign_without_notifying(&world, 2).await;
    let recorder = sql.recorder(&world);
    let patient = recorder.clone().with_recover_after(Duration::from_secs(5));
    assert_eq!(patient.tick().await.unwrap(), RecoveryReport::default(), "their engine may be at work");
    assert_eq!(world.metric("playhouse_matchmaking_unrecorded_entries"), 2.0);
    let recovered = recorder.tick().await.unwrap();
    assert_eq!(recovered, RecoveryReport { batches: 2, failed: 0, has_more: false });
    for tickets in &matches {
        let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap();
        assert!(matches!(push, Some(TicketEvent::Assigned(_))), "{push:?}");
        assert!(world.is_assigned(&tickets[0]).await);
    }
    assert_eq!(sql.published().await.len(), 2);
    assert_eq!(world.metric("playhouse_matchmaking_unrecorded_entries"), 0.0);
    assert_eq!(world.metric("playhouse_matchmaking_entries_recovered_total"), 2.0);
    // If the tickets end with the process, nothing is left behind when it stops.
    assign_without_notifying(&world, 1).await;
    let drain = Drain::new();
    drain.request();
    patient.run(drain).await.unwrap();
    assert_eq!(unrecorded_size(&world).await == 0, world.store.is_embedded());
}

/// As after an engine died after recording, or lost the reply.
async fn recording_a_batch_again_changes_nothing(world: World) {
    let sql = Sql::embedded().await;
    assign_without_notifying(&world, 3).await;
    let entries =
        world.store.claim_unrecorded("engine", 10, Duration::ZERO, BatchRange::default()).await.unwrap();
    let recorder = sql.recorder(&world);
    assert!(recorder.record(&entries[1]).await);
    assert!(recorder.record(&entries[1]).await);
    assert_eq!(sql.published().await.len(), 1);
    let again = eventually("the lease of the engine ends", PATIENCE, async || {
        world.clock.advance(Duration::from_secs(1));
        let recovered = recorder.tick().await.unwrap();
        Some(recovered).filter(|recovered| recovered.batches > 0)
    });
    assert_eq!(again.await, RecoveryReport { batches: 3, failed: 0, has_more: false });
    assert_eq!(sql.rows().await, 3);
    assert_eq!(sql.published().await.len(), 3);
    assert_eq!(unrecorded_size(&world).await, 0);
}

async fn unreadable_batch_becomes_a_failed_row_with_its_bytes(world: World) {
    let sql = Sql::embedded().await;
    let [a, b, c] = world.tickets(&[]).await;
    let garbage = AssignmentGroup { encoded_match: Bytes::from_static(&[0xff; 7]), ..group(&[a]) };
    world.store.assign(&[garbage]).await.unwrap();
    // One match without an id next to one that has one.
    let nameless = MatchMade { match_id: "nobody".to_owned(), ..Default::default() };
    let nameless = MatchesMade { matches: vec![nameless], ..Default::default() }.encode_to_bytes();
    world
        .store
        .assign(&[group(&[b]), AssignmentGroup { encoded_match: nameless.clone(), ..group(&[c]) }])
        .await
        .unwrap();
    let recovered = sql.recorder(&world).tick().await.unwrap();
    assert_eq!(recovered.batches, 2);
    assert_eq!(unrecorded_size(&world).await, 0);
    assert_eq!(sql.published().await.len(), 1, "the one that can be read is published");
    let failed = sql.outbox.queue().list(Filter::Failed, 10).await.unwrap();
    assert_eq!(failed.len(), 2);
    for bytes in [&[0xff; 7][..], &nameless] {
        assert!(failed.iter().any(|row| row.payload.ends_with(bytes)), "{failed:?}");
    }
    assert!(failed.iter().all(|row| row.state == State::Failed && row.cause.is_some()), "{failed:?}");
}

async fn batches_refused_by_sql_block_no_later_match(world: World) {
    const REFUSE: &str = "CREATE TRIGGER refused BEFORE INSERT ON outbox WHEN NEW.payload LIKE '%refused%' \
        BEGIN SELECT RAISE(ABORT, 'refused'); END";
    let sql = Sql::embedded().await;
    let recorder = sql.recorder(&world);
    sql.execute(REFUSE).await;
    const REFUSED: usize = 40;
    for _ in 0..REFUSED {
        let mut refused = group(&world.tickets::<1>(&[]).await);
        let mut made = MatchesMade::decode_from_slice(&refused.encoded_match).unwrap();
        made.matches[0].match_profile = "refused".to_owned();
        refused.encoded_match = made.encode_to_bytes();
        world.store.assign(&[refused]).await.unwrap();
    }
    assign_without_notifying(&world, 1).await;
    let first = recorder.tick().await.unwrap();
    assert_eq!(first, RecoveryReport { batches: 0, failed: 32, has_more: true });
    let second = recorder.tick().await.unwrap();
    assert_eq!(second.batches, 1, "the match behind them is recorded: {second:?}");
    assign_without_notifying(&world, 1).await;
    assert_eq!(recorder.tick().await.unwrap().batches, 1, "and so is a later one");
    assert_eq!(sql.rows().await, 2);
    assert_eq!(unrecorded_size(&world).await, REFUSED as u64);

    sql.execute("DROP TRIGGER refused").await;
    eventually("all are tried again", PATIENCE, async || !recorder.tick().await.unwrap().has_more).await;
    assert_eq!((sql.rows().await, unrecorded_size(&world).await), (REFUSED + 2, 0));
    assign_without_notifying(&world, 1).await;
    let after = recorder.tick().await.unwrap();
    assert_eq!(after, RecoveryReport { batches: 1, failed: 0, has_more: false }, "the walk begins anew");
}

async fn two_recorders_record_each_match_once(world: World) {
    let sql = Sql::embedded().await;
    assign_without_notifying(&world, 50).await;
    let recorders = [sql.recorder(&world), sql.recorder(&world)];
    while unrecorded_size(&world).await > 0 {
        let (one, two) = tokio::join!(recorders[0].tick(), recorders[1].tick());
        assert!(one.unwrap().batches + two.unwrap().batches > 0, "stuck");
    }
    assert_eq!(sql.rows().await, 50);
    assert_eq!(sql.published().await.len(), 50);
}

async fn without_sql_players_are_notified_and_matches_recorded_later(world: World) {
    let server = need!(SqlServer::shared().await);
    let database = server.database().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let sql = Sql::open(&proxy.url(database.url()), None).await;
    let (engine, recorder) = (sql.engine(&world), sql.recorder(&world));
    let mut pushes = world.store.ticket_events().await.unwrap();
    proxy.half_open().await;
    let [a, _b] = world.tickets(&[]).await;
    let started = tokio::time::Instant::now();
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let push = tokio::time::timeout(PATIENCE, pushes.next()).await.unwrap();
    assert!(matches!(push, Some(TicketEvent::Assigned(_))), "{push:?}");
    assert!(world.is_assigned(&a).await);
    assert_eq!(unrecorded_size(&world).await, 1);
    assert_eq!(world.metric("playhouse_matchmaking_entries_notified_unrecorded_total"), 1.0);
    assert_eq!(recorder.tick().await.unwrap().failed, 1, "it stays");

    proxy.pass().await;
    eventually("it is recorded", PATIENCE, async || recorder.tick().await.unwrap().batches == 1).await;
    assert_eq!(unrecorded_size(&world).await, 0);
    assert_eq!(sql.published().await.len(), 1);
}

async fn engines_pause_while_too_much_is_unrecorded_and_resume_afterwards(world: World) {
    let server = need!(SqlServer::shared().await);
    let database = server.database().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let sql = Sql::open(&proxy.url(database.url()), None).await;
    let world = world.under(|rules| rules.max_unrecorded = 4_000);
    let (engine, recorder) = (sql.engine(&world), sql.recorder(&world));
    // Left by other engines while SQL was unreachable.
    assign_without_notifying(&world, 40).await;
    proxy.cut().await;
    let [a, b] = world.tickets(&[]).await;
    for _ in 0..3 {
        assert_eq!(engine.tick().await.unwrap().fetched, 0);
    }
    assert_eq!(world.metric("playhouse_matchmaking_held_back"), 1.0);
    let operator = MatchmakingAdmin::new(world.store.clone(), vec![duels()], 100, world.clock.clone());
    let report = operator.show(a.as_str()).await.unwrap();
    assert!(report.why[0].contains("max_unrecorded"), "{:?}", report.why);
    assert!(recorder.tick().await.unwrap().failed > 0);

    proxy.pass().await;
    eventually("everything is recorded", PATIENCE, async || {
        recorder.tick().await.unwrap();
        unrecorded_size(&world).await == 0
    })
    .await;
    assert_eq!(engine.tick().await.unwrap().assigned, 2);
    assert!(world.is_assigned(&a).await && world.is_assigned(&b).await);
    assert_eq!(world.metric("playhouse_matchmaking_held_back"), 0.0);
    assert_eq!(sql.published().await.len(), 41);
}

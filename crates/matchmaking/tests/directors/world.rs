//! A store with tickets, and a backend over it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Clock;
use buffa::{Message, MessageField};
use config::{Setting, Value};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use matchmaking::model::{SearchFields, TicketId};
use matchmaking::store::{Coordination, RedisServers, Rules, UnrecordedBatch};
use matchmaking::{
    Backend, BackendConfig, BackfillLimits, Error, Frontend, FrontendConfig, HostRules, MatchRecorder,
    Metrics, OpenMatch, Queries, QueryConfig, Store,
};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use proto::openmatch::{self, FunctionConfig, Match, MatchProfile, Ticket};
use proto::playhouse::{MatchMade, MatchesMade};
use redis_store::{RedisStore, RedisUrl};
use runtime::Drain;
use testkit::{Redis, RedisNamespace};

use crate::listener::Listening;
use crate::wire::{Director, Matches, Wire};

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) frontend: Frontend,
    metrics: Metrics,
    registry: Registry,
    journal: Arc<Journal>,
    redis_store: RedisStore,
    keys: Option<RedisNamespace>,
    rules: Rules,
    wire: Wire,
    /// The processes that serve Directors on the wire. They stop with the world, so that what they do last is done.
    processes: Mutex<Vec<Arc<Listening>>>,
}

/// A recorder that only remembers.
#[derive(Debug, Default)]
struct Journal(Mutex<Vec<MatchMade>>);

impl MatchRecorder for Journal {
    fn record<'a>(&'a self, entry: &'a UnrecordedBatch) -> BoxFuture<'a, bool> {
        let matches = MatchesMade::decode_from_slice(&entry.matches).unwrap().matches;
        self.0.lock().unwrap().extend(matches);
        std::future::ready(true).boxed()
    }
}

/// Decides at once, with patience.
pub(crate) fn config() -> BackendConfig {
    BackendConfig {
        registration_window: Duration::ZERO,
        proposal_window: Duration::from_secs(30),
        evaluator: None,
        evaluator_timeout: Duration::from_secs(30),
        max_proposals: 1000,
        hosts: HostRules::default(),
    }
}

impl World {
    pub(crate) fn in_memory() -> Self {
        Self::new(RedisStore::Memory, None, Clock::manual(Clock::system().now()), Duration::from_secs(600))
    }

    /// Creates a world with its own key prefix on a shared server.
    pub(crate) async fn in_redis(redis: &Redis) -> Self {
        let keys = redis.namespace();
        let url = RedisUrl::parse(&Value::Text(keys.url().to_owned())).unwrap();
        let config = redis_store::Config { url, timeout: Duration::from_secs(5) };
        let redis_store = RedisStore::open(&config).await.unwrap();
        Self::new(redis_store, Some(keys), Clock::system(), Duration::from_secs(600))
    }

    /// Sets after which time claims expire.
    pub(crate) fn with_pending_timeout(self, timeout: Duration) -> Self {
        Self::new(self.redis_store, self.keys, self.clock, timeout).over(self.wire)
    }

    /// Sets how Directors call.
    pub(crate) fn over(self, wire: Wire) -> Self {
        Self { wire, ..self }
    }

    fn new(
        redis_store: RedisStore,
        keys: Option<RedisNamespace>,
        clock: Clock,
        pending_timeout: Duration,
    ) -> Self {
        let rules = Rules {
            key_prefix: keys.as_ref().map_or("", |keys| keys.prefix()).to_owned(),
            coordination: Coordination::Script,
            pending_timeout,
            assigned_ttl: Duration::from_secs(60),
            check_tickets: true,
            max_unrecorded: 64 << 20,
        };
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let store =
            Store::new(&redis_store, RedisServers::default(), rules.clone(), clock.clone(), metrics.clone());
        let config = FrontendConfig {
            ticket_ttl: Duration::from_secs(600),
            max_ticket_ttl: Duration::from_secs(3600),
            max_ticket_size: 65_536,
            max_fields: 100,
            max_watchers: 100,
            watch_check: Duration::from_secs(5),
            ttl_field: true,
            cors_origins: Vec::new(),
        };
        let frontend = Frontend::new(store.clone(), config, clock.clone(), metrics.clone());
        let (journal, wire, processes) = (Arc::default(), Wire::InProcess, Mutex::default());
        Self { store, clock, frontend, metrics, registry, journal, redis_store, keys, rules, wire, processes }
    }

    /// Returns the calls to one process. Processes share nothing but the store.
    pub(crate) fn backend(&self, config: BackendConfig) -> Director {
        let store = match &self.store {
            Store::Memory(_) => self.store.clone(),
            Store::Redis(_) => Store::new(
                &self.redis_store,
                RedisServers::default(),
                self.rules.clone(),
                self.clock.clone(),
                self.metrics.clone(),
            ),
        };
        let recorder: Arc<dyn MatchRecorder> = self.journal.clone();
        let (clock, metrics) = (self.clock.clone(), self.metrics.clone());
        let limits = BackfillLimits { max_size: 65_536, max_fields: 100 };
        let backend = Backend::new(store.clone(), Some(recorder), config, limits, clock, metrics).unwrap();
        if self.wire == Wire::InProcess {
            return Director::InProcess(backend);
        }
        let open_match = OpenMatch::new(store).serve(backend.service());
        let listening = Arc::new(Listening::start(open_match, self.frontend.clone(), &[]));
        self.processes.lock().unwrap().push(listening.clone());
        match self.wire {
            Wire::Rest => Director::Rest(listening, reqwest::Client::new()),
            _ => Director::grpc(listening),
        }
    }

    /// Returns the queries of one process.
    pub(crate) fn queries(&self) -> Queries {
        let config = QueryConfig {
            page_size: 10,
            max_memory: 1 << 30,
            max_age: Duration::ZERO,
            idle_timeout: Duration::from_secs(300),
        };
        Queries::new(self.store.clone(), config, self.metrics.clone())
    }

    /// Creates a ticket.
    pub(crate) async fn ticket(&self) -> Ticket {
        let id = self.frontend.create_from_fields(SearchFields::default()).await.unwrap();
        self.frontend.get(id.as_str()).await.unwrap()
    }

    pub(crate) async fn tickets<const N: usize>(&self) -> [Ticket; N] {
        let tickets = futures::future::join_all((0..N).map(|_| self.ticket())).await;
        tickets.try_into().unwrap()
    }

    /// Returns whether nobody has claimed the ticket.
    pub(crate) async fn is_free(&self, ticket: &Ticket) -> bool {
        self.store.status(&id(ticket)).await.unwrap().pending_since.is_none()
    }

    /// Returns the connection of a ticket's assignment.
    pub(crate) async fn connection(&self, ticket: &Ticket) -> Option<String> {
        let assignment = self.store.find(&id(ticket)).await.unwrap().assignment?;
        Some(openmatch::Assignment::decode_from_slice(&assignment).unwrap().connection)
    }

    /// Returns the recorded matches.
    pub(crate) fn recorded(&self) -> Vec<MatchMade> {
        self.journal.0.lock().unwrap().clone()
    }

    /// Returns the value of a counter with these labels.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).unwrap();
        let name = format!("playhouse_matchmaking_{name} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |value| value.parse().unwrap())
    }
}

pub(crate) fn id(ticket: &Ticket) -> TicketId {
    TicketId::parse(&ticket.id).unwrap()
}

/// Calls `FetchMatches` for a profile.
pub(crate) async fn fetch(backend: &Director, config: &FunctionConfig) -> Matches {
    fetch_profile(backend, config, "duel").await
}

pub(crate) async fn fetch_profile(backend: &Director, config: &FunctionConfig, profile: &str) -> Matches {
    let profile = MatchProfile { name: profile.to_owned(), ..Default::default() };
    backend.fetch_matches(Some(config.clone()), Some(profile), Drain::new()).await.unwrap()
}

/// Reads a call to its end.
pub(crate) async fn read(stream: Matches) -> (Vec<Match>, Option<String>) {
    let read: Vec<Result<Match, Error>> = stream.collect().await;
    let error = read.iter().find_map(|next| next.as_ref().err().map(ToString::to_string));
    (read.into_iter().filter_map(Result::ok).collect(), error)
}

/// Returns the ids of matches.
pub(crate) fn names(matches: &[Match]) -> Vec<&str> {
    matches.iter().map(|match_| match_.match_id.as_str()).collect()
}

/// Returns a group of tickets that go to this server.
pub(crate) fn group(connection: &str, tickets: &[&Ticket]) -> openmatch::AssignmentGroup {
    let assignment = openmatch::Assignment { connection: connection.to_owned(), ..Default::default() };
    openmatch::AssignmentGroup {
        ticket_ids: tickets.iter().map(|ticket| ticket.id.clone()).collect(),
        assignment: MessageField::some(assignment),
        ..Default::default()
    }
}

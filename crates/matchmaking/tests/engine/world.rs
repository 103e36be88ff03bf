//! A store with tickets, and helpers to inspect them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base::Clock;
use base::id::ProcessId;
use buffa::{Message, MessageField};
use buffa_types::google::protobuf::{Any, StringValue};
use config::{Setting, Value};
use futures::FutureExt;
use futures::future::BoxFuture;
use live::Live;
use matchmaking::engine::{EngineConfig, Profile};
use matchmaking::model::{Moment, TicketId};
use matchmaking::store::{
    AfterNotify, BatchRange, Coordination, FetchedTickets, NewTicket, RedisServers, Rules, UnrecordedBatch,
};
use matchmaking::{
    Backfills, Engine, Frontend, FrontendConfig, MatchRecorder, Metrics, Players, Queue, Store,
};
use prometheus_client::registry::Registry;
use proto::openmatch::{Assignment, SearchFields, Ticket};
use proto::playhouse::{MatchMade, MatchesMade};
use redis_store::{RedisStore, RedisUrl};
use testkit::{Redis, RedisNamespace};

/// One store, and one clock.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) frontend: Frontend,
    pub(crate) rules: Rules,
    registry: Registry,
    redis_store: RedisStore,
    url: Option<String>,
    journal: Arc<Journal>,
    /// The age of the next ticket added by `put`.
    next: AtomicI64,
    _keys: Option<RedisNamespace>,
}

pub(crate) fn rules() -> Rules {
    Rules {
        key_prefix: String::new(),
        coordination: Coordination::Script,
        pending_timeout: Duration::from_secs(600),
        assigned_ttl: Duration::from_secs(60),
        check_tickets: true,
        max_unrecorded: 64 << 20,
    }
}

/// A recorder that only remembers, for tests that are not about recording.
#[derive(Debug, Default)]
struct Journal(std::sync::Mutex<Vec<MatchMade>>);

impl MatchRecorder for Journal {
    fn record<'a>(&'a self, entry: &'a UnrecordedBatch) -> BoxFuture<'a, bool> {
        let matches = MatchesMade::decode_from_slice(&entry.matches).unwrap().matches;
        self.0.lock().unwrap().extend(matches);
        std::future::ready(true).boxed()
    }
}

/// A tick of an hour, and short deadlines.
pub(crate) fn engine_config() -> EngineConfig {
    EngineConfig {
        tick: Duration::from_secs(3600),
        gather: Duration::from_millis(5),
        fetch_limit: 1000,
        function_timeout: Duration::from_millis(150),
        evaluator_timeout: Duration::from_millis(150),
        assigner_timeout: Duration::from_millis(150),
    }
}

/// Returns a manual clock that starts at the present.
fn still() -> Clock {
    Clock::manual(Clock::system().now())
}

/// Opens a connection to this server.
pub(crate) async fn open(url: &str) -> RedisStore {
    let url = RedisUrl::parse(&Value::Text(url.to_owned())).unwrap();
    RedisStore::open(&redis_store::Config { url, timeout: Duration::from_millis(500) }).await.unwrap()
}

impl World {
    pub(crate) fn in_memory() -> Self {
        Self::new(RedisStore::Memory, None, rules(), None, still())
    }

    /// Creates a world with its own key prefix on a shared server.
    pub(crate) async fn in_redis(redis: &Redis) -> Self {
        let keys = redis.namespace();
        let rules = Rules { key_prefix: keys.prefix().to_owned(), ..rules() };
        let url = keys.url().to_owned();
        Self::new(open(&url).await, Some(url), rules, Some(keys), still())
    }

    /// Creates a world on a server of its own.
    pub(crate) async fn at(url: &str) -> Self {
        Self::new(open(url).await, Some(url.to_owned()), rules(), None, still())
    }

    fn new(
        redis_store: RedisStore,
        url: Option<String>,
        rules: Rules,
        keys: Option<RedisNamespace>,
        clock: Clock,
    ) -> Self {
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
        let next = AtomicI64::new(clock.now().as_millis() * 1000);
        let journal = Arc::default();
        Self {
            store,
            clock,
            metrics,
            frontend,
            rules,
            registry,
            redis_store,
            url,
            journal,
            next,
            _keys: keys,
        }
    }

    /// Makes this world read assignments from the given server.
    pub(crate) async fn reading_assignments_at(mut self, url: &str) -> Self {
        let RedisStore::Redis(assignments) = open(url).await else { panic!("no server: {url}") };
        let others = RedisServers { assignments: Some(assignments), replica: None };
        let (rules, clock, metrics) = (self.rules.clone(), self.clock.clone(), self.metrics.clone());
        self.store = Store::new(&self.redis_store, others, rules, clock, metrics);
        self
    }

    /// Creates another world, without tickets and with other rules.
    pub(crate) fn under(&self, change: impl FnOnce(&mut Rules)) -> Self {
        self.under_at(still(), change)
    }

    /// Creates another world, without tickets, with other rules and this clock.
    pub(crate) fn under_at(&self, clock: Clock, change: impl FnOnce(&mut Rules)) -> Self {
        let mut rules = self.rules.clone();
        rules.key_prefix.push_str(&format!("{}:", TicketId::generate(Moment::default())));
        change(&mut rules);
        Self::new(self.redis_store.clone(), self.url.clone(), rules, None, clock)
    }

    /// Opens the store as another process would: the same one in memory, another connection to Redis.
    pub(crate) async fn another_store(&self) -> Store {
        match &self.url {
            Some(url) => self.store_over(&open(url).await),
            None => self.store.clone(),
        }
    }

    /// Opens the same tickets over another connection.
    pub(crate) fn store_over(&self, redis_store: &RedisStore) -> Store {
        Store::new(
            redis_store,
            RedisServers::default(),
            self.rules.clone(),
            self.clock.clone(),
            self.metrics.clone(),
        )
    }

    /// Returns the players' use cases with these queues.
    pub(crate) fn players<const N: usize>(&self, queues: [(String, Queue); N]) -> Players {
        let live = Live::new(&self.redis_store, &self.rules.key_prefix);
        Players::new(self.frontend.clone(), queues.into(), live, self.metrics.clone())
    }

    pub(crate) fn engine(&self, profiles: Vec<Profile>) -> Engine {
        self.engine_with(profiles, engine_config())
    }

    pub(crate) fn engine_with(&self, profiles: Vec<Profile>, config: EngineConfig) -> Engine {
        self.engine_over(self.store.clone(), profiles, config)
    }

    pub(crate) fn engine_over(&self, store: Store, profiles: Vec<Profile>, config: EngineConfig) -> Engine {
        self.engine_recording(self.journal.clone(), store, profiles, config)
    }

    pub(crate) fn engine_recording(
        &self,
        recorder: Arc<dyn MatchRecorder>,
        store: Store,
        profiles: Vec<Profile>,
        config: EngineConfig,
    ) -> Engine {
        let id = ProcessId::generate();
        Engine::new(id, store, profiles, config, self.clock.clone(), self.metrics.clone())
            .with_recorder(recorder)
    }

    /// Returns the use cases of game servers.
    pub(crate) fn backfills(&self) -> Backfills {
        self.frontend.backfills().clone().with_recorder(self.journal.clone())
    }

    /// Creates a ticket as a client does.
    pub(crate) async fn ticket(&self, tags: &[&str]) -> TicketId {
        let fields = SearchFields { tags: owned(tags), ..Default::default() };
        self.create(Ticket { search_fields: MessageField::some(fields), ..Default::default() }).await
    }

    /// Creates a ticket with one number.
    pub(crate) async fn ticket_with(&self, field: &str, number: f64) -> TicketId {
        let fields = SearchFields {
            double_args: [(field.to_owned(), number)].into_iter().collect(),
            ..Default::default()
        };
        self.create(Ticket { search_fields: MessageField::some(fields), ..Default::default() }).await
    }

    /// Creates a ticket with these tags and numbers.
    pub(crate) async fn ticket_of_fields(&self, tags: Vec<String>, numbers: Vec<(String, f64)>) -> TicketId {
        let fields = SearchFields { tags, double_args: numbers.into_iter().collect(), ..Default::default() };
        self.create(Ticket { search_fields: MessageField::some(fields), ..Default::default() }).await
    }

    /// Creates a ticket with this user id.
    pub(crate) async fn ticket_of(&self, user: &str) -> TicketId {
        self.ticket_with_texts([(matchmaking::USER_FIELD, user)]).await
    }

    /// Creates a ticket of a party with these user ids, which the first one leads.
    pub(crate) async fn ticket_of_party(&self, users: &[String]) -> TicketId {
        let fields = [(matchmaking::USER_FIELD, &*users[0]), (matchmaking::MEMBERS_FIELD, &*users.join(" "))];
        self.ticket_with_texts(fields).await
    }

    async fn ticket_with_texts(&self, fields: impl IntoIterator<Item = (&str, &str)>) -> TicketId {
        let mut ticket = Ticket::default();
        for (name, text) in fields {
            let value = StringValue { value: text.to_owned(), ..Default::default() }.encode_to_bytes();
            let type_url = "type.googleapis.com/google.protobuf.StringValue".to_owned();
            ticket.persistent_field.insert(name.to_owned(), Any { type_url, value, ..Default::default() });
        }
        self.create(ticket).await
    }

    async fn create(&self, ticket: Ticket) -> TicketId {
        let made = Ticket::decode_from_slice(&self.frontend.create(Some(ticket)).await.unwrap()).unwrap();
        TicketId::parse(&made.id).unwrap()
    }

    pub(crate) async fn tickets<const N: usize>(&self, tags: &[&str]) -> [TicketId; N] {
        let mut ids = Vec::new();
        for _ in 0..N {
            ids.push(self.ticket(tags).await);
        }
        ids.try_into().unwrap()
    }

    /// Adds a ticket directly to the store, younger than those before.
    pub(crate) async fn put(&self) -> TicketId {
        let created = Moment::from_micros(self.next.fetch_add(1, Ordering::Relaxed));
        self.put_at(created).await
    }

    pub(crate) async fn put_at(&self, created: Moment) -> TicketId {
        let id = TicketId::generate(created);
        let time = buffa_types::google::protobuf::Timestamp {
            seconds: created.nanos() / 1_000_000_000,
            nanos: (created.nanos() % 1_000_000_000) as i32,
            ..Default::default()
        };
        let ticket =
            Ticket { id: id.to_string(), create_time: MessageField::some(time), ..Default::default() };
        let ttl = Duration::from_secs(600);
        let new = NewTicket { id: id.clone(), created, ttl, data: ticket.encode_to_bytes() };
        self.store.create(new).await.unwrap();
        id
    }

    /// Returns the connection of this ticket's assignment.
    pub(crate) async fn connection(&self, id: &TicketId) -> Option<String> {
        connection(&self.store, id).await
    }

    /// Returns the assignment as Open Match clients get it.
    pub(crate) async fn assignment(&self, id: &TicketId) -> Assignment {
        self.frontend.get(id.as_str()).await.unwrap().assignment.into_option().unwrap()
    }

    pub(crate) async fn is_assigned(&self, id: &TicketId) -> bool {
        self.connection(id).await.is_some()
    }

    /// Fetches the tickets that another engine could get now, and releases them.
    pub(crate) async fn free(&self) -> Vec<TicketId> {
        let FetchedTickets { ids, .. } = self.store.fetch(&"another".into(), 100_000).await.unwrap();
        self.store.release(&ids).await.unwrap();
        ids
    }

    /// Returns the matches made since the last call.
    pub(crate) async fn made(&self) -> Vec<MatchMade> {
        let mut made = std::mem::take(&mut *self.journal.0.lock().unwrap());
        // Adds those whose engine lost the reply, or could not notify.
        let entries =
            self.store.claim_unrecorded("test", 10_000, Duration::ZERO, BatchRange::default()).await.unwrap();
        for left in
            entries.iter().flat_map(|entry| MatchesMade::decode_from_slice(&entry.matches).unwrap().matches)
        {
            if !made.iter().any(|known| known.match_id == left.match_id) {
                made.push(left);
            }
        }
        self.store.notify(&entries, AfterNotify::Remove).await.unwrap();
        made
    }

    /// Returns all metrics.
    pub(crate) fn all_metrics(&self) -> BTreeMap<String, f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        text.lines().filter(|text| !text.starts_with('#')).filter_map(line).collect()
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.all_metrics().get(name).copied().unwrap_or_default()
    }

    pub(crate) fn failures(&self, profile: &str, step: &str) -> f64 {
        self.metric(&format!("playhouse_matchmaking_failures_total{{profile=\"{profile}\",step=\"{step}\"}}"))
    }
}

pub(crate) async fn connection(store: &Store, id: &TicketId) -> Option<String> {
    let data = store.find(id).await.unwrap().assignment?;
    Some(Assignment::decode_from_slice(&data).unwrap().connection)
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// State shared by plugins and their test.
pub(crate) type Shared<T> = Arc<std::sync::Mutex<T>>;

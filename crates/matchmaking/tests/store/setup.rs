//! Stores to test, and tickets for them.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use base::Timestamp;
use base::id::Uuid;
use buffa::{Message, MessageField};
use buffa_types::google::protobuf as wkt;
use bytes::Bytes;
use futures::future::join_all;
use live::Live;
use matchmaking::model::{Moment, TicketId};
use matchmaking::store::{
    AfterNotify, AssignOutcome, AssignmentGroup, Assignments, BatchRange, Coordination, NewTicket,
    RedisServers, Rules, UnrecordedBatch,
};
use matchmaking::{
    BackfillCleaner, Frontend, FrontendConfig, JoinRequest, Metrics, PlayerTicket, Players, Queries,
    QueryConfig, Queue, Store,
};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use proto::{openmatch, playhouse};
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use redis_store::{HashTags, KeySpace, RedisStore};
use testkit::{DeclaredKeysProxy, Redis, RedisNamespace, Seed};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The pattern of ticket ids that scripts look up themselves: those of players.
pub(crate) const LEARNED: &str = "????????????????????";

/// The creation time of ticket 0; each further ticket is a microsecond younger.
const DAWN: i64 = 1_772_366_400_000_000;

/// A store that any number of processes can open.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) rules: Rules,
    pub(crate) others: RedisServers,
    pub(crate) timeout: Duration,
    pub(crate) watch_check: Duration,
    pub(crate) ttl_field: bool,
    /// The address of Redis, unless the store is in memory.
    redis: Option<Arc<RedisNamespace>>,
    /// Replaces the server's own address.
    url: Option<String>,
    hash_tags: HashTags,
}

impl Setup {
    fn new(redis: Option<&Redis>, coordination: Coordination) -> Self {
        let redis = redis.map(Redis::namespace);
        let rules = Rules {
            key_prefix: redis.as_ref().map_or("", |redis| redis.prefix()).to_owned(),
            coordination,
            pending_timeout: Duration::from_secs(60),
            assigned_ttl: Duration::from_secs(60),
            check_tickets: true,
            max_unrecorded: 64 << 20,
        };
        Self {
            rules,
            others: RedisServers::default(),
            timeout: Duration::from_secs(10),
            watch_check: Duration::from_millis(200),
            ttl_field: true,
            redis: redis.map(Arc::new),
            url: None,
            hash_tags: HashTags::Off,
        }
    }

    pub(crate) fn memory() -> Self {
        Self::new(None, Coordination::Script)
    }

    pub(crate) fn script(redis: &Redis) -> Self {
        Self::new(Some(redis), Coordination::Script)
    }

    pub(crate) fn lock(redis: &Redis) -> Self {
        Self::new(Some(redis), Coordination::Lock)
    }

    /// Creates a setup with hash tags on a server in cluster mode, where scripts reach only the keys that they declare.
    pub(crate) fn declared(redis: &Redis, keys: &DeclaredKeysProxy, coordination: Coordination) -> Self {
        let mut setup = Self::new(Some(redis), coordination);
        (setup.url, setup.hash_tags) = (Some(keys.url()), HashTags::On);
        // Redis compares each key of a command with all allowed keys, and the proxy runs one command at a time.
        setup.timeout = Duration::from_secs(60);
        setup
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    /// Returns whether each command takes long, because a proxy checks its keys.
    pub(crate) fn is_slow(&self) -> bool {
        self.hash_tags == HashTags::On
    }

    /// Connects through another address, with a short timeout.
    pub(crate) fn through(mut self, url: String, timeout: Duration) -> Self {
        (self.url, self.timeout) = (Some(url), timeout);
        self
    }

    pub(crate) async fn open(&self) -> Tickets {
        let (redis_store, clock) = match &self.redis {
            None => (RedisStore::Memory, Clock::manual(Timestamp::from_millis(DAWN / 1000))),
            Some(_) => {
                let redis = redis_store::Redis::open(self.url(), self.timeout).await.unwrap();
                (RedisStore::Redis(redis.with_hash_tags(self.hash_tags)), Clock::system())
            }
        };
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let store =
            Store::new(&redis_store, self.others.clone(), self.rules.clone(), clock.clone(), metrics.clone());
        let config = FrontendConfig {
            ticket_ttl: Duration::from_secs(600),
            max_ticket_ttl: Duration::from_secs(3600),
            max_ticket_size: 65_536,
            max_fields: 100,
            max_watchers: 100,
            watch_check: self.watch_check,
            ttl_field: self.ttl_field,
            cors_origins: Vec::new(),
        };
        let frontend = Frontend::new(store.clone(), config, clock.clone(), metrics.clone());
        let live = Live::new(&redis_store, &self.rules.key_prefix);
        Tickets { setup: self.clone(), store, clock, frontend, live, metrics, registry: Arc::new(registry) }
    }

    /// Returns the address of Redis.
    pub(crate) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or_else(|| self.redis.as_ref().unwrap().url())
    }
}

/// An open store, as one process has it.
#[derive(Clone, Debug)]
pub(crate) struct Tickets {
    pub(crate) setup: Setup,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) frontend: Frontend,
    pub(crate) live: Live,
    metrics: Metrics,
    registry: Arc<Registry>,
}

impl Deref for Tickets {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Tickets {
    /// Opens the same tickets as another process would.
    pub(crate) async fn elsewhere(&self) -> Self {
        if self.is_in_redis() { self.setup.open().await } else { self.clone() }
    }

    pub(crate) fn is_in_redis(&self) -> bool {
        self.setup.redis.is_some()
    }

    /// Advances the manual clock; Redis uses real time.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Creates tickets in this order, if the store creates them one after the other.
    pub(crate) async fn create_all(&self, numbers: impl IntoIterator<Item = usize>) {
        for made in join_all(numbers.into_iter().map(|number| self.create(ticket(number)))).await {
            made.unwrap();
        }
    }

    /// Returns the players' use cases with these queues.
    pub(crate) fn players<const N: usize>(&self, queues: [(&str, Queue); N]) -> Players {
        let queues: BTreeMap<String, Queue> = queues.map(|(name, queue)| (name.to_owned(), queue)).into();
        Players::new(self.frontend.clone(), queues, self.live.clone(), self.metrics.clone())
    }

    /// Assigns and notifies as an engine does that cannot record its matches: the batches stay.
    pub(crate) async fn assign(
        &self,
        groups: &[AssignmentGroup],
    ) -> Result<Vec<AssignOutcome>, matchmaking::Error> {
        let assigned = self.store.assign(groups).await?;
        self.store.notify(&assigned.batches, AfterNotify::Keep).await?;
        Ok(assigned.outcomes)
    }

    /// Returns all batches, however young.
    pub(crate) async fn entries(&self) -> Vec<UnrecordedBatch> {
        self.claim_unrecorded("test", 10_000, Duration::ZERO, BatchRange::default()).await.unwrap()
    }

    /// Assigns these tickets to each other, in a match of this name.
    pub(crate) async fn play(&self, name: &str, tickets: &[&PlayerTicket]) {
        let ids = tickets.iter().map(|ticket| ticket.id.clone()).collect();
        assert_eq!(self.assign(&[group(name, ids)]).await.unwrap(), [AssignOutcome::Assigned]);
    }

    /// Fetches tickets for an engine.
    pub(crate) async fn take(&self, limit: usize) -> Vec<TicketId> {
        self.fetch(&"engine".into(), limit).await.unwrap().ids
    }

    /// Returns all tickets in matchmaking, oldest first.
    pub(crate) async fn all(&self) -> Vec<TicketId> {
        let (ids, count) = self.list(100_000).await.unwrap();
        assert_eq!(ids.len() as u64, count);
        ids
    }

    /// Returns the connection of a ticket's assignment.
    pub(crate) async fn connection_of(&self, id: &TicketId) -> Option<String> {
        self.find(id).await.unwrap().assignment.map(|assignment| connection(&assignment))
    }

    /// Returns the use cases of match functions, in pages of ten.
    pub(crate) fn queries(&self) -> Queries {
        self.queries_with(|_| {})
    }

    pub(crate) fn queries_with(&self, change: impl FnOnce(&mut QueryConfig)) -> Queries {
        let mut config = QueryConfig {
            page_size: 10,
            max_memory: 1 << 30,
            max_age: Duration::ZERO,
            idle_timeout: Duration::from_secs(300),
        };
        change(&mut config);
        Queries::new(self.store.clone(), config, self.metrics.clone())
    }

    /// Returns the loop that deletes expired backfills.
    pub(crate) fn cleaner(&self) -> BackfillCleaner {
        BackfillCleaner::new(self.store.clone(), self.metrics.clone())
    }

    /// Returns how often the store was scanned for the index, for this reason.
    pub(crate) fn scans(&self, reason: &str) -> u64 {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).unwrap();
        let name = format!("playhouse_matchmaking_query_scans_total{{reason=\"{reason}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
    }

    /// Returns the value of a counter.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).unwrap();
        let name = format!("playhouse_matchmaking_{name}_total ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    }

    /// Returns the value of a gauge.
    pub(crate) fn gauge(&self, name: &str) -> i64 {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).unwrap();
        let name = format!("playhouse_matchmaking_{name} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    }

    /// Returns a key with its prefix.
    pub(crate) fn key(&self, name: &str) -> String {
        KeySpace::new("matchmaking", &self.setup.rules.key_prefix, self.setup.hash_tags).key(name).to_string()
    }

    /// Opens a connection that bypasses the store.
    pub(crate) async fn raw(&self) -> Raw {
        Raw(self.setup.redis.as_ref().unwrap().connect().await)
    }

    /// Returns all keys of this test, without the prefix.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let prefix = self.key("");
        let keys: Vec<String> = self.raw().await.ask(&["KEYS", &format!("*{prefix}*")]).await;
        let mut keys: Vec<String> = keys.iter().map(|key| key.replacen(&prefix, "", 1)).collect();
        keys.sort();
        keys
    }
}

/// Another program on the same Redis.
#[derive(Clone)]
pub(crate) struct Raw(MultiplexedConnection);

impl Raw {
    pub(crate) async fn ask<T: FromRedisValue>(&mut self, command: &[&str]) -> T {
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut self.0).await.unwrap()
    }

    pub(crate) async fn set(&mut self, key: &str, value: &[u8], seconds: u64) {
        redis::cmd("SET").arg(key).arg(value).arg("EX").arg(seconds).exec_async(&mut self.0).await.unwrap();
    }

    pub(crate) async fn get(&mut self, key: &str) -> Option<Bytes> {
        redis::cmd("GET").arg(key).query_async(&mut self.0).await.unwrap()
    }
}

/// Returns player number `n` of a test.
pub(crate) fn user(number: u128) -> Uuid {
    Uuid::from_u128(number + 1)
}

/// Returns a request to wait in this queue.
pub(crate) fn to(queue: &str) -> JoinRequest {
    JoinRequest { queue: queue.to_owned(), ..JoinRequest::default() }
}

pub(crate) fn id(number: usize) -> TicketId {
    TicketId::parse(&format!("t{number:05}")).unwrap()
}

pub(crate) fn ids(numbers: impl IntoIterator<Item = usize>) -> Vec<TicketId> {
    numbers.into_iter().map(id).collect()
}

/// Returns ticket number `n` of a test. Higher numbers are younger.
pub(crate) fn ticket(number: usize) -> NewTicket {
    let created = Moment::from_micros(DAWN + i64::try_from(number).unwrap());
    NewTicket { id: id(number), created, ttl: Duration::from_secs(600), data: data(number) }
}

/// Returns the encoded ticket.
pub(crate) fn data(number: usize) -> Bytes {
    let micros = DAWN + i64::try_from(number).unwrap();
    let created = wkt::Timestamp {
        seconds: micros / 1_000_000,
        nanos: i32::try_from(micros % 1_000_000 * 1000).unwrap(),
        ..Default::default()
    };
    let fields = openmatch::SearchFields { tags: vec![format!("tag {number}")], ..Default::default() };
    let ticket = openmatch::Ticket {
        id: id(number).to_string(),
        search_fields: MessageField::some(fields),
        create_time: MessageField::some(created),
        ..Default::default()
    };
    ticket.encode_to_bytes()
}

/// Returns a match of these tickets, with its name as the connection.
pub(crate) fn group(name: &str, tickets: Vec<TicketId>) -> AssignmentGroup {
    let assignment = openmatch::Assignment { connection: name.to_owned(), ..Default::default() };
    let made = playhouse::MatchMade {
        match_id: name.to_owned(),
        ticket_ids: tickets.iter().map(TicketId::to_string).collect(),
        assignment: MessageField::some(assignment.clone()),
        ..Default::default()
    };
    let made = playhouse::MatchesMade { matches: vec![made], ..Default::default() }.encode_to_bytes();
    AssignmentGroup {
        fence: None,
        claim: None,
        tickets,
        assignments: Assignments::Shared(assignment.encode_to_bytes()),
        encoded_match: made,
        room: None,
    }
}

/// Returns the shared assignment of a match.
pub(crate) fn only(group: &AssignmentGroup) -> Bytes {
    match &group.assignments {
        Assignments::Shared(assignment) => assignment.clone(),
        Assignments::PerTicket(each) => panic!("{each:?}"),
    }
}

/// Returns the connection of an encoded assignment.
pub(crate) fn connection(assignment: &[u8]) -> String {
    openmatch::Assignment::decode_from_slice(assignment).unwrap().connection
}

/// Returns the names of encoded matches, and their tickets.
pub(crate) fn matches(made: &[u8]) -> Vec<(String, Vec<TicketId>)> {
    let made = playhouse::MatchesMade::decode_from_slice(made).unwrap().matches;
    made.into_iter()
        .map(|made| (made.match_id, made.ticket_ids.iter().map(|id| TicketId::parse(id).unwrap()).collect()))
        .collect()
}

/// Returns the names of all matches in these batches.
pub(crate) fn names(entries: &[UnrecordedBatch]) -> Vec<String> {
    entries.iter().flat_map(|entry| matches(&entry.matches)).map(|(name, _)| name).collect()
}

pub(crate) fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}

pub(crate) fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    Seed::new().choices(0).shuffle(&mut numbers);
    numbers
}

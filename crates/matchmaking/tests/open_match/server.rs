//! A process that serves all services of Open Match, and calls of its clients.

use std::net::SocketAddr;
use std::time::Duration;

use base::Clock;
use matchmaking::store::{Coordination, RedisServers, Rules};
use matchmaking::{
    Backend, BackendConfig, BackfillLimits, Frontend, FrontendConfig, HostRules, Metrics, OpenMatch, Queries,
    QueryConfig, Store,
};
use prometheus_client::registry::Registry;
use redis_store::RedisStore;
use reqwest::{Client, Method};
use serde_json::Value;

use crate::listener::Listening;

pub(crate) const LIMITS: BackfillLimits = BackfillLimits { max_size: 65_536, max_fields: 100 };

pub(crate) fn rules() -> Rules {
    Rules {
        key_prefix: String::new(),
        coordination: Coordination::Script,
        pending_timeout: Duration::from_secs(60),
        assigned_ttl: Duration::from_secs(60),
        check_tickets: true,
        max_unrecorded: 64 << 20,
    }
}

/// A process that serves all services of Open Match, until it is dropped.
pub(crate) struct Served {
    pub(crate) store: Store,
    pub(crate) address: SocketAddr,
    client: Client,
    _listening: Listening,
}

impl Served {
    pub(crate) async fn in_memory() -> Self {
        Self::start(RedisStore::Memory, rules(), &[]).await
    }

    pub(crate) async fn under(rules: Rules) -> Self {
        Self::start(RedisStore::Memory, rules, &[]).await
    }

    /// Lets pages of these origins call.
    pub(crate) async fn for_pages(origins: &[String]) -> Self {
        Self::start(RedisStore::Memory, rules(), origins).await
    }

    pub(crate) async fn in_redis(url: &str, rules: Rules) -> Self {
        // A short timeout, as the tests stop the server.
        let redis = redis_store::Redis::open(url, Duration::from_secs(2)).await.unwrap();
        Self::start(RedisStore::Redis(redis), rules, &[]).await
    }

    async fn start(redis_store: RedisStore, rules: Rules, origins: &[String]) -> Self {
        let (clock, metrics) = (Clock::system(), Metrics::new(&mut Registry::default()));
        let servers = RedisServers::default();
        let store = Store::new(&redis_store, servers, rules, clock.clone(), metrics.clone());
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
        let limits = config.backfill_limits();
        let frontend = Frontend::new(store.clone(), config, clock.clone(), metrics.clone());
        let config = BackendConfig {
            registration_window: Duration::ZERO,
            proposal_window: Duration::from_secs(20),
            evaluator: None,
            evaluator_timeout: Duration::from_secs(5),
            max_proposals: 1000,
            hosts: HostRules::default(),
        };
        let backend = Backend::new(store.clone(), None, config, limits, clock, metrics.clone()).unwrap();
        let query = QueryConfig {
            page_size: 10,
            max_memory: 1 << 30,
            max_age: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(300),
        };
        let queries = Queries::new(store.clone(), query, metrics);
        let open_match = OpenMatch::new(store.clone())
            .allow_origins(origins.to_vec())
            .serve(frontend.service())
            .serve(backend.service())
            .serve(queries.service());
        let listening = Listening::start(open_match, frontend, origins);
        Self { store, address: listening.address, client: Client::new(), _listening: listening }
    }

    /// Sends a REST request. Returns the status and the body as JSON.
    pub(crate) async fn rest(&self, method: Method, path: &str, body: impl Into<String>) -> (u16, Value) {
        let request = self.client.request(method, format!("http://{}{path}", self.address));
        let response = request.body(body.into()).send().await.unwrap();
        let kind = response.headers()["content-type"].clone();
        assert_eq!(kind, "application/json");
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Starts a request whose answer is a stream of lines.
    pub(crate) async fn open(&self, path: &str) -> reqwest::Response {
        self.client.get(format!("http://{}{path}", self.address)).send().await.unwrap()
    }

    /// Calls a method with Connect in JSON.
    pub(crate) async fn connect(&self, method: &str, body: Value) -> (u16, Value) {
        let request = self.client.post(format!("http://{}/{method}", self.address)).json(&body);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

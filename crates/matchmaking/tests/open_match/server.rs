//! A listener that serves Open Match in this process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use base::Clock;
use http_server::{Limits, Server, Site};
use matchmaking::store::{Coordination, RedisServers, Rules};
use matchmaking::{
    Backend, BackendConfig, Frontend, FrontendConfig, HostRules, Metrics, OpenMatch, Queries, QueryConfig,
    Store,
};
use prometheus_client::registry::Registry;
use redis_store::RedisStore;
use reqwest::{Client, Method};
use runtime::Process;
use runtime::lifecycle::{Config, Signals, Stage};
use serde_json::Value;
use tokio::net::TcpListener;

const CONFIG: Config = Config {
    start_timeout: Duration::from_secs(10),
    drain_delay: Duration::ZERO,
    grace: Duration::from_secs(10),
    restart: base::Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
};

const LIMITS: Limits = Limits {
    header_timeout: Duration::from_secs(30),
    write_timeout: Duration::from_secs(30),
    max_head: 16 * 1024,
    max_streams: 1000,
    public_max_streams: 1000,
    idle_grace: Duration::ZERO,
    max_connections: 1000,
    max_connections_per_address: 0,
    trusted_proxies: Vec::new(),
};

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
    stop: tokio::sync::mpsc::UnboundedSender<&'static str>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    pub(crate) async fn in_memory() -> Self {
        Self::start(RedisStore::Memory, rules(), &[]).await
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
        let origins = origins.to_vec();
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
        let frontend = Frontend::new(store.clone(), config, clock.clone(), metrics.clone());
        let config = BackendConfig {
            registration_window: Duration::ZERO,
            proposal_window: Duration::from_secs(20),
            evaluator: None,
            evaluator_timeout: Duration::from_secs(5),
            hosts: HostRules::default(),
        };
        let backend = Backend::new(store.clone(), None, config, clock, metrics.clone()).unwrap();
        let query = QueryConfig {
            page_size: 10,
            max_memory: 1 << 30,
            max_age: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(300),
        };
        let queries = Queries::new(store.clone(), query, metrics);
        let open_match = OpenMatch::new(store.clone())
            .allow_origins(origins.clone())
            .serve(frontend.service())
            .serve(backend.service())
            .serve(queries.service(frontend.backfills().clone()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, signals) = Signals::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let process = Process::new(CONFIG, runtime::Metrics::new("0"));
            let server = Server::new(LIMITS, Clock::system(), process.metrics());
            let start = async move |process: &mut Process| {
                let listener = TcpListener::from_std(listener).unwrap();
                let (site, routes) = (Site::new([], &origins), open_match.routes());
                server.serve(process, Stage::Listeners, "open_match", listener, site, routes);
                process.supervise("matchmaking-pushes", move |drain| {
                    let frontend = frontend.clone();
                    async move { frontend.run(drain).await }
                });
                Ok::<(), Infallible>(())
            };
            tokio::task::LocalSet::new().block_on(&runtime, process.run(signals, start));
        });
        Self { store, address, client: Client::new(), stop, thread: Some(thread) }
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

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.stop.send("SIGTERM");
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

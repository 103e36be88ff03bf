//! A gateway behind a network that can be cut, and the operator's view of what it did.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use testkit::{
    Database, FaultProxy, Folder, Nats, Program, Redis, RunningProgram, SqlServer, eventually, free_port,
};

use super::PATIENCE;

/// The token of the service that notifies players of a fleet.
const SERVICE_TOKEN: &str = "service-token-of-the-client-tests-00001";
/// The key of sessions.
const SESSION_KEY: &str = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I=";
/// Short, so that a test that waits for heartbeats is short.
const HEARTBEAT: &str = "gateway.stream_heartbeat=1s";
/// How long a byte takes through a slow network: long enough to cut it between a commit and its response.
const SLOW: Duration = Duration::from_secs(2);

/// A gateway, and the network in front of it.
pub(super) struct World {
    /// Players reach the gateway through it.
    pub(super) network: FaultProxy,
    gateway: RunningProgram,
    /// Starts the gateway at the same address.
    program: Program,
    at: HashMap<String, String>,
    client: Client,
    /// The rest of the fleet. Dropped last.
    _others: Others,
}

#[derive(Default)]
struct Others {
    _backend: Option<RunningProgram>,
    _servers: Option<(Database, SqlServer, Redis, Nats)>,
    _folder: Option<Folder>,
}

impl World {
    /// Starts everything in one process, with the builtin issuer.
    pub(super) async fn dev() -> Self {
        let (network, address) = network().await;
        let port = address.port().to_string();
        let public = format!("gateway.public_url=http://{}", network.addr());
        let program =
            playhouse(&["dev", "--ephemeral", "--print-addresses", "--set", HEARTBEAT, "--set", &public])
                .args([
                    "--gateway-port",
                    &port,
                    "--service-api-port",
                    "0",
                    "--admin-port",
                    "0",
                    "--open-match-port",
                    "0",
                ]);
        Self::start(network, program, Others::default(), None).await
    }

    /// Starts a fleet that trusts this issuer: one process that notifies players, and the gateway.
    pub(super) async fn fleet(issuer: &str, secret: &str) -> Result<Self, testkit::Error> {
        let (sql, redis, nats) = tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private())?;
        let database = sql.database().await;
        let folder = Folder::fresh().unwrap();
        let (network, address) = network().await;
        let config = folder.path().join("playhouse.toml");
        let settings = format!(
            "[gateway]\npublic_url = \"http://{}\"\n[gateway.session]\nkeys = [\"{SESSION_KEY}\"]\n\
             [services.shop]\ntoken_hash = \"{}\"\nmay = [\"notifications\"]\n",
            network.addr(),
            http_server::TokenHash::of(SERVICE_TOKEN),
        );
        std::fs::write(&config, settings).unwrap();
        let serve = |roles: &str| {
            playhouse(&["serve", "--print-addresses", "--config", config.to_str().unwrap(), "--roles", roles])
                .args(["--set", HEARTBEAT])
                .args(
                    ["service_api", "admin", "open_match"]
                        .iter()
                        .flat_map(|name| ["--set".to_owned(), format!("listen.{name}=127.0.0.1:0")]),
                )
                .env("PLAYHOUSE_DB_URL", database.url())
                .env("PLAYHOUSE_DB_MIGRATE", "true")
                .env("PLAYHOUSE_REDIS_URL", redis.url())
                .env("PLAYHOUSE_BUS_URL", nats.url())
                .env("PLAYHOUSE_LOCKS_BUCKETS", "1000")
                .env("PLAYHOUSE_IDENTITY_ISSUER", issuer)
                .env("PLAYHOUSE_IDENTITY_CLIENT_SECRET", secret)
        };
        let backend = serve("service-api,notifier,outbox-relay").start().unwrap();
        let mut at = addresses(&backend).await;
        at.insert("service_token".to_owned(), SERVICE_TOKEN.to_owned());
        let gateway = serve("gateway").args(["--set", &format!("listen.gateway={address}")]);
        let servers = Some((database, sql, redis, nats));
        let others = Others { _backend: Some(backend), _servers: servers, _folder: Some(folder) };
        Ok(Self::start(network, gateway, others, Some(at)).await)
    }

    async fn start(
        network: FaultProxy,
        program: Program,
        others: Others,
        at: Option<HashMap<String, String>>,
    ) -> Self {
        let gateway = program.start().unwrap();
        let own = addresses(&gateway).await;
        let client = Client::builder().timeout(PATIENCE).build().unwrap();
        Self { network, gateway, program, at: at.unwrap_or(own), client, _others: others }
    }

    /// Returns the URL of the gateway for players.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.network.addr())
    }

    pub(super) fn address(&self, listener: &str) -> &str {
        &self.at[listener]
    }

    /// Kills the gateway with SIGKILL.
    pub(super) async fn kill_gateway(&self) {
        self.gateway.kill();
        self.gateway.wait(PATIENCE).await;
    }

    /// Starts a gateway at the address of the one that was killed.
    pub(super) async fn start_gateway(&mut self) {
        self.gateway = self.program.start().unwrap();
        addresses(&self.gateway).await;
    }

    /// Slows the network down, waits until `is_committed`, and cuts it: the response is lost on its way.
    pub(super) async fn cut_after_commit(
        &self,
        begin: impl AsyncFnOnce(),
        is_committed: impl AsyncFn() -> bool,
    ) {
        self.network.delay(SLOW).await;
        begin().await;
        eventually("the change is committed", PATIENCE, async || is_committed().await).await;
        self.network.cut().await;
    }

    async fn call(&self, method: Method, listener: &str, token: &str, path: &str, body: &Value) -> Value {
        self.request(method, &format!("http://{}{path}", self.at[listener]), &self.at[token], body).await
    }

    /// Sends a request past the network, and returns the body of its response. Asserts that it succeeds.
    pub(super) async fn request(&self, method: Method, url: &str, token: &str, body: &Value) -> Value {
        let request = self.client.request(method, url).bearer_auth(token);
        let key = uuid::Uuid::now_v7().to_string();
        let response = request.header("idempotency-key", key).json(body).send().await.unwrap();
        let status = response.status();
        let body: Value = response.json().await.unwrap_or_default();
        assert!(status.is_success(), "{url}: {status} {body}");
        body
    }

    /// Gives the queue of the demo a ready check and a number, and lets parties of two in.
    pub(super) async fn ask_players(&self) {
        let definitions = [
            ("queue", "numbers = [\"skill\"]\nmax_party = 2\n"),
            ("profile", "players = 2\nassigner = \"demo\"\nready_check = \"30s\"\n"),
        ];
        for (kind, text) in definitions {
            let (path, body) = (format!("/definitions/{kind}/duel"), json!({ "text": text }));
            self.call(Method::PUT, "admin", "operator_token", &path, &body).await;
        }
        eventually("the definitions are active", PATIENCE, async || {
            let listed =
                self.call(Method::GET, "admin", "operator_token", "/definitions", &Value::Null).await;
            if listed["active_revision"] == 2 { Ok(()) } else { Err(listed) }
        })
        .await;
    }

    /// Sends a notification to a player.
    pub(super) async fn notify(&self, user: &str, title: &str) {
        let body = json!({ "to": { "user_id": user }, "texts": { "en": { "title": title } } });
        self.call(Method::POST, "service_api", "service_token", "/internal/v1/notifications", &body).await;
    }

    /// Creates and opens a drop in which a player may buy ten units. Returns its id.
    pub(super) async fn open_drop(&self) -> String {
        let terms = json!({
            "price": { "amount": 999, "currency": "EUR" }, "per_player": 10, "reservation_ms": 600_000,
            "when_sold_out": "stay_open",
            "admission": {
                "batch": 10, "period_ms": 200, "capacity": 10, "lifetime_ms": 600_000, "arrive_within_ms": 600_000,
            },
        });
        // Names are unique.
        let name = format!("Sale {}", uuid::Uuid::now_v7());
        let body = json!({ "name": name, "resource": "sword", "stock": 10, "terms": terms });
        let drop = self.call(Method::POST, "admin", "operator_token", "/drops", &body).await;
        let id = drop["drop_id"].as_str().unwrap().to_owned();
        self.call(Method::POST, "admin", "operator_token", &format!("/drops/{id}/open"), &json!({})).await;
        id
    }

    /// Returns how many units of a drop are reserved.
    pub(super) async fn reserved(&self, drop: &str) -> i64 {
        let path = format!("/drops/{drop}/stock");
        self.call(Method::GET, "admin", "operator_token", &path, &Value::Null).await["reserved"]
            .as_i64()
            .unwrap()
    }

    /// Returns the players in a drop's line and inside.
    pub(super) async fn entries(&self, drop: &str) -> Value {
        let path = format!("/drops/{drop}/entries");
        self.call(Method::GET, "admin", "operator_token", &path, &Value::Null).await
    }

    /// Returns the movements of a drop's stock.
    pub(super) async fn ledger(&self, drop: &str) -> Value {
        let path = format!("/drops/{drop}/ledger");
        self.call(Method::GET, "admin", "operator_token", &path, &Value::Null).await
    }
}

/// Starts a network to a free port of this machine.
async fn network() -> (FaultProxy, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    (FaultProxy::to(address).await, address)
}

fn playhouse(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

async fn addresses(running: &RunningProgram) -> HashMap<String, String> {
    serde_json::from_str(&running.wait_for_line("\"admin\":", PATIENCE).await).unwrap()
}

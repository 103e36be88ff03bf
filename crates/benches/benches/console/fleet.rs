//! The product on the servers of a fleet.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use benches::{OPERATOR_TOKEN, Usage};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::issuer::{Issuer, Signer};
use testkit::{Database, Flavour, Folder, Nats, Program, Redis, RunningProgram, SqlServer};

use crate::http::{Connection, bearer, request};

const TIMEOUT: Duration = Duration::from_secs(60);
const SHOP_TOKEN: &str = "ph_bench";

/// The configuration in addition to [`benches::CONFIG`]. No ticket is in the pool of the profile, so that all of them keep waiting. The
/// engine looks at them once a minute: at its usual pace, 100,000 tickets without a match would keep it busy.
const SETTINGS: &str = r#"
[locks]
buckets = 10000
[gateway]
public_url = "http://127.0.0.1:8080"
[gateway.session]
keys = ["0123456789abcdef0123456789abcdef"]
[matchmaking]
ticket_ttl = "1h"
tick = "1m"
gather = "1s"
[matchmaking.queues.duel]
[matchmaking.assigners.bench]
kind = "static"
addresses = ["10.0.0.1:7777"]
[matchmaking.profiles.tournament]
players = 2
assigner = "bench"
[matchmaking.profiles.tournament.pools.invited]
filters = ["tag invited"]
[notification.webhooks.crm]
url = "https://crm.example.com/hook"
secrets = ["whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z"]
"#;

pub(crate) struct Fleet {
    program: PathBuf,
    product: Option<Product>,
    issuer: Issuer,
    signer: Signer,
    pub(crate) database: Database,
    sql: SqlServer,
    redis: Redis,
    nats: Nats,
    folder: Folder,
}

struct Product {
    running: RunningProgram,
    addresses: HashMap<String, String>,
}

/// Processor time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) product: Duration,
    pub(crate) sql: Duration,
    pub(crate) redis: Duration,
}

impl Cpu {
    /// Returns the difference to an earlier reading.
    pub(crate) fn since(self, before: Self) -> Self {
        let (product, sql) = (self.product - before.product, self.sql - before.sql);
        Self { product, sql, redis: self.redis - before.redis }
    }
}

/// A registered player.
#[derive(Clone)]
pub(crate) struct Player {
    name: String,
    pub(crate) user: String,
    pub(crate) account: String,
}

impl Fleet {
    /// Starts the servers.
    pub(crate) async fn start(program: PathBuf) -> Self {
        // As in production: commits are synced, and the working set fits into memory.
        let sql = SqlServer::builder(Flavour::Mariadb).durable().arg("--innodb-buffer-pool-size=4G");
        let (sql, redis, nats) = tokio::join!(sql.start(), Redis::private(), Nats::private());
        let (sql, redis, nats) = (sql.unwrap(), redis.unwrap(), nats.unwrap());
        let signer = Signer::ec("bench");
        let (database, issuer) = (sql.database().await, Issuer::start(&[&signer]).await);
        let folder = Folder::fresh().unwrap();
        Self { program, product: None, issuer, signer, database, sql, redis, nats, folder }
    }

    /// Starts the product with all roles, with or without the console. Stops the one before.
    pub(crate) async fn serve(&mut self, with_console: bool) {
        if let Some(product) = self.product.take() {
            product.running.sigterm();
            product.running.wait(TIMEOUT).await;
        }
        let config = self.folder.path().join("bench.toml");
        let hash: String = Sha256::digest(SHOP_TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
        let shop = format!("[services.shop]\ntoken_hash = \"{hash}\"\nmay = [\"entitlements\"]\n");
        let console = format!("[console]\nenabled = {with_console}\n");
        std::fs::write(&config, format!("{}{SETTINGS}{shop}{console}", benches::CONFIG)).unwrap();
        let running = Program::new(&self.program)
            .args(["serve", "--print-addresses", "--config", config.to_str().unwrap()])
            .env("PLAYHOUSE_DB_URL", self.database.url())
            .env("PLAYHOUSE_REDIS_URL", self.redis.url())
            .env("PLAYHOUSE_BUS_URL", self.nats.url())
            .env("PLAYHOUSE_IDENTITY_ISSUER", &self.issuer.url)
            .start()
            .unwrap();
        let line = running.wait_for_line("\"admin\":", TIMEOUT).await;
        let addresses = serde_json::from_str(&line).unwrap();
        self.product = Some(Product { running, addresses });
    }

    fn product(&self) -> &Product {
        self.product.as_ref().unwrap()
    }

    /// Returns the address of a listener.
    pub(crate) fn address(&self, listener: &str) -> &str {
        &self.product().addresses[listener]
    }

    /// Reads the processor time that the product and the stores that it reads have used so far.
    pub(crate) fn cpu(&self) -> Cpu {
        let of = |pid: Option<u32>| Usage::of(pid.unwrap()).cpu;
        let product = Usage::of(self.product().running.pid()).cpu;
        Cpu { product, sql: of(self.sql.pid()), redis: of(self.redis.pid()) }
    }

    /// Returns the last lines that the product wrote.
    pub(crate) fn log(&self) -> String {
        let lines: Vec<String> = self.product().running.lines().into_iter().map(|line| line.text).collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// Opens a connection to a listener.
    pub(crate) async fn connect(&self, listener: &str) -> Connection {
        Connection::open(self.address(listener)).await
    }

    /// Registers `count` players.
    pub(crate) async fn players(&self, count: usize) -> Vec<Player> {
        let mut gateway = self.connect("gateway").await;
        let mut players = Vec::with_capacity(count);
        for at in 0..count {
            let name = format!("player-{at}");
            let me = gateway.send(&request("GET", "/v1/me", &bearer(&self.sign(&name)), "")).await.json();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let (user, account) = (text(&me["user_id"]), text(&me["accounts"][0]["account_id"]));
            players.push(Player { name, user, account });
        }
        players
    }

    /// Returns a fresh token of a player. It is valid for some minutes.
    pub(crate) fn token(&self, player: &Player) -> String {
        self.sign(&player.name)
    }

    fn sign(&self, name: &str) -> String {
        self.signer.sign(&self.issuer.claims(name))
    }

    /// Calls the admin API as an operator.
    pub(crate) async fn operate(&self, path: &str, body: &Value) -> Value {
        let headers = format!("{}idempotency-key: bench\r\n", bearer(OPERATOR_TOKEN));
        let body = body.to_string();
        self.connect("admin").await.send(&request("POST", path, &headers, &body)).await.json()
    }
}

/// Builds the request that grants a resource to a player. The number makes it unique.
pub(crate) fn grant(player: &Player, number: u64) -> Vec<u8> {
    let body = json!({
        "user_id": player.user, "account_id": player.account, "resource": format!("r{number}"),
        "occurred_at": "2026-03-01T12:00:00Z",
    });
    let headers = format!("{}idempotency-key: k{number}\r\n", bearer(SHOP_TOKEN));
    request("POST", "/internal/v1/entitlements/grant", &headers, &body.to_string())
}

//! The product on the servers of a fleet.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::issuer::{Issuer, Signer};
use testkit::{Database, Flavour, Folder, Nats, Program, Redis, RunningProgram, SqlServer};

use crate::http::{Connection, Events};

const TIMEOUT: Duration = Duration::from_secs(60);
const TOKEN: &str = "ph_bench";

/// The configuration in addition to [`benches::CONFIG`].
const FLEET: &str = r#"
[locks]
buckets = 10000
[gateway]
public_url = "http://127.0.0.1:8080"
[gateway.session]
keys = ["0123456789abcdef0123456789abcdef"]
"#;

pub(crate) struct Fleet {
    pub(crate) running: RunningProgram,
    addresses: HashMap<String, String>,
    issuer: Issuer,
    signer: Signer,
    pub(crate) database: Database,
    pub(crate) nats: Nats,
    _sql: SqlServer,
    _redis: Redis,
    _folder: Folder,
}

/// A registered player.
#[derive(Clone)]
pub(crate) struct Player {
    pub(crate) token: String,
    pub(crate) user: String,
    account: String,
}

impl Fleet {
    /// Starts the servers and the product, with additional settings.
    pub(crate) async fn start(settings: &str) -> Self {
        // As in production: commits are synced, and the working set fits into memory.
        let sql = SqlServer::builder(Flavour::Mariadb).durable().arg("--innodb-buffer-pool-size=2G");
        let (sql, redis, nats) = tokio::join!(sql.start(), Redis::private(), Nats::private());
        let (sql, redis, nats) = (sql.unwrap(), redis.unwrap(), nats.unwrap());
        let signer = Signer::ec("bench");
        let (database, issuer) = (sql.database().await, Issuer::start(&[&signer]).await);
        let folder = Folder::fresh().unwrap();
        let config = folder.path().join("bench.toml");
        let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
        let shop = format!(
            "[services.shop]\ntoken_hash = \"{hash}\"\nmay = [\"read\", \"accounts\", \"entitlements\", \"notifications\"]\n"
        );
        std::fs::write(&config, format!("{}{FLEET}{shop}{settings}", benches::CONFIG)).unwrap();
        let running = Program::new(benches::product())
            .args(["serve", "--print-addresses", "--config", config.to_str().unwrap()])
            .env("PLAYHOUSE_DB_URL", database.url())
            .env("PLAYHOUSE_REDIS_URL", redis.url())
            .env("PLAYHOUSE_BUS_URL", nats.url())
            .env("PLAYHOUSE_IDENTITY_ISSUER", &issuer.url)
            .start()
            .unwrap();
        let line = running.wait_for_line("\"admin\":", TIMEOUT).await;
        let addresses = serde_json::from_str(&line).unwrap();
        Self { running, addresses, issuer, signer, database, nats, _sql: sql, _redis: redis, _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Registers `count` players.
    pub(crate) async fn players(&self, count: usize) -> Vec<Player> {
        let mut gateway = self.gateway().await;
        let mut players = Vec::with_capacity(count);
        for at in 0..count {
            let token = self.signer.sign(&self.issuer.claims(&format!("player-{at}")));
            let me = gateway.get("/v1/me", &token).await;
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let (user, account) = (text(&me["user_id"]), text(&me["accounts"][0]["account_id"]));
            players.push(Player { token, user, account });
        }
        players
    }

    pub(crate) async fn gateway(&self) -> Connection {
        Connection::open(&self.addresses["gateway"]).await
    }

    pub(crate) async fn events(&self, player: &Player) -> Events {
        Events::open(&self.addresses["gateway"], &player.token, "10.1.0.1").await
    }

    pub(crate) async fn shop(&self) -> Shop {
        Shop(Connection::open(&self.addresses["service_api"]).await)
    }
}

/// A shop that grants resources.
pub(crate) struct Shop(Connection);

impl Shop {
    /// Grants the resource with this number. Returns when the response arrives, which is after the commit.
    pub(crate) async fn grant(&mut self, player: &Player, number: u64) {
        let body = json!({
            "user_id": player.user, "account_id": player.account, "resource": format!("r{number}"),
            "occurred_at": "2026-03-01T12:00:00Z",
        });
        self.0.post("/internal/v1/entitlements/grant", TOKEN, &format!("k{number}"), &body).await;
    }
}

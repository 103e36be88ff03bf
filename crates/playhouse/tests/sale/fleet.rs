//! Where the sale takes place: a fleet on servers, or one process on embedded stores.

use std::collections::HashMap;
use std::sync::Arc;

use async_nats::jetstream::{self, consumer::AckPolicy, consumer::pull};
use futures::StreamExt;
use serde_json::Value;
use testkit::issuer::{Issuer, Signer};
use testkit::{Database, Folder, Nats, PaymentProvider, Redis, Running, SqlServer, eventually};

use super::api::Place;
use super::verdict::Events;
use super::{OPERATOR_TOKEN, PATIENCE, playhouse};

/// Three processes with all roles, on servers of their own.
pub(crate) struct Fleet {
    // Dropped in this order: first what needs the next.
    processes: Vec<Running>,
    place: Place,
    _folder: Folder,
    _database: Database,
    sql: SqlServer,
    redis: Redis,
    nats: Nats,
}

/// One process on SQLite, everything else in process.
pub(crate) struct Laptop {
    _process: Running,
    place: Place,
    _folder: Folder,
}

impl Fleet {
    pub(crate) async fn start() -> Result<Self, testkit::Error> {
        let (sql, redis, nats) = tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private())?;
        let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
        let stores = [
            ("PLAYHOUSE_DB_URL", database.url().to_owned()),
            ("PLAYHOUSE_HOT_URL", redis.url()),
            ("PLAYHOUSE_BUS_URL", nats.url()),
        ];
        let (processes, place) = start(3, &folder, &stores).await;
        Ok(Self { processes, place, _folder: folder, _database: database, sql, redis, nats })
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }

    /// Removes everything from Redis: the line, the sessions, the limits.
    pub(crate) async fn empty_redis(&self) {
        let client = redis::Client::open(self.redis.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
    }

    /// Kills MariaDB and starts it again on the same data.
    pub(crate) async fn restart_sql(&mut self) {
        self.sql.kill().await.unwrap();
        self.sql.start_again().await.unwrap();
    }

    /// Kills one process without warning. The admin API of the first one is used to the end.
    pub(crate) fn kill_a_process(&self) {
        self.processes[2].kill();
    }

    /// Reads the events of the sale from the stream, once the outbox has nothing left to publish.
    pub(crate) async fn events(&self) -> Events {
        published(&self.place.admin).await;
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        let stream = jetstream::new(client).get_stream("PLAYHOUSE").await.unwrap();
        let count = stream.cached_info().state.messages.try_into().unwrap();
        let reader = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let messages = stream.create_consumer(reader).await.unwrap().messages().await.unwrap().take(count);
        let bodies =
            messages.map(|message| serde_json::from_slice::<Value>(&message.unwrap().payload).unwrap());
        let mut events = Events::default();
        bodies.collect::<Vec<_>>().await.iter().for_each(|event| events.add(event));
        events
    }
}

impl Laptop {
    pub(crate) async fn start() -> Result<Self, testkit::Error> {
        let folder = Folder::fresh().unwrap();
        let url = format!("sqlite:{}", folder.path().join("playhouse.db").display());
        let (mut processes, place) = start(1, &folder, &[("PLAYHOUSE_DB_URL", url)]).await;
        Ok(Self { _process: processes.remove(0), place, _folder: folder })
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }

    /// Waits until every event was published, none of them given up. Each buyer's inbox shows that its events came once.
    pub(crate) async fn has_published_everything(&self) {
        published(&self.place.admin).await;
    }
}

/// Starts processes with all roles.
async fn start(count: usize, folder: &Folder, stores: &[(&str, String)]) -> (Vec<Running>, Place) {
    let signer = Arc::new(Signer::ec("sale"));
    let issuer = Arc::new(Issuer::start(&[&signer]).await);
    let config = folder.path().join("playhouse.toml");
    // Players carry its webhooks to whichever gateway answers.
    let provider = Arc::new(PaymentProvider::start("").await);
    std::fs::write(&config, settings(&issuer.url, &provider.secret)).unwrap();
    let program = playhouse(&["serve", "--print-addresses"]).env("PLAYHOUSE_CONFIG", &config);
    let program = stores.iter().fold(program, |program, (name, value)| program.env(name, value));
    let (mut processes, mut gateways, mut admin) = (Vec::new(), Vec::new(), None);
    for _ in 0..count {
        let running = program.start().unwrap();
        let line = running.wait_for_line("\"admin\":", PATIENCE * 2).await;
        let mut addresses: HashMap<String, String> = serde_json::from_str(&line).unwrap();
        gateways.extend(addresses.remove("gateway"));
        admin = admin.or(addresses.remove("admin"));
        processes.push(running);
    }
    (processes, Place { gateways, admin: admin.unwrap(), issuer, signer, provider })
}

/// All players have one address, so the limits per address are out of the way.
fn settings(issuer: &str, payment_secret: &str) -> String {
    let operator = http_server::TokenHash::of(OPERATOR_TOKEN);
    format!(
        r#"
[db]
migrate = true
[locks]
buckets = 1000
[identity]
issuer = "{issuer}"
[listen]
gateway = "127.0.0.1:0"
internal = "127.0.0.1:0"
admin = "127.0.0.1:0"
open_match = "127.0.0.1:0"
max_streams = 100000
[gateway.limits]
address = "10000/s burst 100000"
[gateway.session]
keys = ["0123456789abcdef0123456789abcdef"]
[drops.payments]
secrets = ["{payment_secret}"]
[operators.tester]
token_hash = "{operator}"
"#
    )
}

/// Waits until the outbox has nothing left to publish.
async fn published(admin: &str) {
    eventually("everything is published", PATIENCE * 4, async || {
        let open = in_outbox(admin, "open").await;
        if open.is_empty() { Ok(()) } else { Err(format!("{} events are open", open.len())) }
    })
    .await;
    let failed = in_outbox(admin, "failed").await;
    assert!(failed.is_empty(), "{} events were given up, the first: {}", failed.len(), failed[0]);
}

async fn in_outbox(admin: &str, state: &str) -> Vec<Value> {
    let url = format!("http://{admin}/outbox?state={state}&limit=10000");
    let response = reqwest::Client::new().get(url).bearer_auth(OPERATOR_TOKEN).send().await.unwrap();
    let found: Value = response.error_for_status().unwrap().json().await.unwrap();
    found["events"].as_array().unwrap().clone()
}

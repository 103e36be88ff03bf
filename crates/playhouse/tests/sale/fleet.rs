//! The processes under test: a fleet on servers, or one process on embedded stores.

use std::collections::HashMap;
use std::sync::Arc;

use async_nats::jetstream::{self, consumer::AckPolicy, consumer::pull};
use futures::StreamExt;
use serde_json::Value;
use testkit::issuer::{Issuer, Signer};
use testkit::{Database, Folder, Nats, PaymentProvider, Redis, RunningProgram, SqlServer, eventually};

use super::api::FleetAccess;
use super::verdict::Events;
use super::{OPERATOR_TOKEN, PATIENCE, playhouse};

/// Three processes with all roles, on private servers.
pub(crate) struct Fleet {
    // Fields are dropped in this order: each needs the ones below it.
    processes: Vec<RunningProgram>,
    access: FleetAccess,
    _folder: Folder,
    _database: Database,
    sql: SqlServer,
    redis: Redis,
    nats: Nats,
}

/// One process with embedded stores.
pub(crate) struct SingleProcess {
    _process: RunningProgram,
    access: FleetAccess,
    _folder: Folder,
}

impl Fleet {
    pub(crate) async fn start() -> Result<Self, testkit::Error> {
        let (sql, redis, nats) = tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private())?;
        let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
        let stores = [
            ("PLAYHOUSE_DB_URL", database.url().to_owned()),
            ("PLAYHOUSE_REDIS_URL", redis.url()),
            ("PLAYHOUSE_BUS_URL", nats.url()),
        ];
        let (processes, access) = start(3, &folder, &stores).await;
        Ok(Self { processes, access, _folder: folder, _database: database, sql, redis, nats })
    }

    pub(crate) fn access(&self) -> FleetAccess {
        self.access.clone()
    }

    /// Removes everything from Redis: the line, the sessions, the rate limits.
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

    /// Kills the third process. The first one stays, because the test uses its admin API.
    pub(crate) fn kill_one_process(&self) {
        self.processes[2].kill();
    }

    /// Reads the events of the sale from the stream, once the outbox has nothing left to publish.
    pub(crate) async fn events(&self) -> Events {
        wait_until_published(&self.access.admin).await;
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

impl SingleProcess {
    pub(crate) async fn start() -> Result<Self, testkit::Error> {
        let folder = Folder::fresh().unwrap();
        let url = format!("sqlite:{}", folder.path().join("playhouse.db").display());
        let (mut processes, access) = start(1, &folder, &[("PLAYHOUSE_DB_URL", url)]).await;
        Ok(Self { _process: processes.remove(0), access, _folder: folder })
    }

    pub(crate) fn access(&self) -> FleetAccess {
        self.access.clone()
    }

    /// Waits until every event is published, and fails if one was given up. Each buyer's inbox shows that its events arrived once.
    pub(crate) async fn wait_until_all_is_published(&self) {
        wait_until_published(&self.access.admin).await;
    }
}

/// Starts processes with all roles.
async fn start(
    count: usize,
    folder: &Folder,
    stores: &[(&str, String)],
) -> (Vec<RunningProgram>, FleetAccess) {
    let signer = Arc::new(Signer::ec("sale"));
    let issuer = Arc::new(Issuer::start(&[&signer]).await);
    let config = folder.path().join("playhouse.toml");
    // The provider has no URL: the players deliver its webhooks to any gateway that answers.
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
    (processes, FleetAccess { gateways, admin: admin.unwrap(), issuer, signer, provider })
}

/// Returns the configuration. All players come from one address, so the limits per address are raised.
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
service_api = "127.0.0.1:0"
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

/// Waits until the outbox has nothing left to publish, and fails if an event was given up.
async fn wait_until_published(admin: &str) {
    eventually("everything is published", PATIENCE * 4, async || {
        let open = in_outbox(admin, "open").await;
        if open.is_empty() { Ok(()) } else { Err(format!("{} events are not published", open.len())) }
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

//! The shipped program on stores of its own.

use std::fs;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use testkit::{Folder, Nats, Program, Redis, RunningProgram, SqlServer};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running process and its stores. Dropping it stops them.
pub(crate) struct Subject {
    pub(crate) program: RunningProgram,
    pub(crate) address: String,
    pub(crate) redis: Redis,
    _folder: Folder,
    _nats: Nats,
    _sql: SqlServer,
}

impl Subject {
    /// Starts a frontend.
    pub(crate) async fn start() -> Self {
        Self::start_with(&["matchmaking-frontend"], "").await
    }

    /// Starts a process with these roles and further lines of configuration.
    pub(crate) async fn start_with(roles: &[&str], settings: &str) -> Self {
        let (redis, nats) = (Redis::private().await.unwrap(), Nats::private().await.unwrap());
        let (sql, folder) = (SqlServer::private().await.unwrap(), Folder::fresh().unwrap());
        let (database, redis_url, nats_url) = (sql.database().await, redis.url(), nats.url());
        let database = database.url();
        let configuration = format!(
            r#"
            process.roles = {roles:?}
            listen.open_match = "127.0.0.1:0"
            listen.admin = "127.0.0.1:0"
            db.url = "{database}"
            db.migrate = true
            locks.buckets = 1000
            redis.url = "{redis_url}"
            bus.url = "{nats_url}"
            telemetry.log = "warn"
            matchmaking.query_max_memory = "8GiB"
            {settings}
            "#
        );
        let file = folder.path().join("playhouse.toml");
        fs::write(&file, configuration).unwrap();
        let program = Program::new(benches::product()).args(["serve", "--print-addresses", "--config"]);
        let program = program.arg(&file).start().unwrap();
        let ready = program.wait_for_line("\"open_match\":\"127.0.0.1:", START_TIMEOUT).await;
        let addresses: serde_json::Value = serde_json::from_str(&ready).unwrap();
        let address = addresses["open_match"].as_str().unwrap().to_owned();
        Self { program, address, redis, _folder: folder, _nats: nats, _sql: sql }
    }

    pub(crate) async fn connect_to_redis(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.redis.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}

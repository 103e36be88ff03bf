//! Redis.

use std::path::{Path, PathBuf};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;
use url::Url;

use crate::process::Launch;
use crate::server::{Hosting, Server, ServerKind, ServerLocation};
use crate::unique::unique;
use crate::{Error, external, installed};

const VARIABLE: &str = "REDIS_URL";

/// A Redis server. Its data survives [`kill`](Server::kill) only with [`appendonly`](RedisBuilder::appendonly) or
/// [`durable`](RedisBuilder::durable).
pub type Redis = Server<RedisKind>;

/// The options of a Redis server.
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    log: bool,
    on_disk: bool,
    cluster: bool,
    args: Vec<String>,
}

/// Starts Redis.
#[derive(Debug)]
pub struct RedisKind {
    program: PathBuf,
    options: RedisBuilder,
}

/// A prefix for the keys of one test on a Redis server.
#[derive(Debug)]
pub struct RedisNamespace {
    url: String,
    prefix: String,
    external: bool,
}

impl Redis {
    /// Returns the shared server of this test process: the one at `REDIS_URL`, or else a local one.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Redis> = OnceCell::const_new();
        let start = || async {
            match external::from_variable(VARIABLE, |text| external::parse_url(text, "redis"))? {
                Some(url) => Self::external(url).await,
                None => Self::private().await,
            }
        };
        SHARED.get_or_try_init(start).await
    }

    /// Returns the shared server of this test process that runs in cluster mode. It is always local.
    pub async fn shared_cluster() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Redis> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::builder().cluster().start()).await
    }

    /// Starts a server that only the caller uses and may break.
    pub async fn private() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// Returns a builder for a server that only the caller uses.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// `redis://…`
    pub fn url(&self) -> String {
        match &self.hosting {
            Hosting::Local(local) => format!("redis://{}", local.location().addr()),
            Hosting::External(url) => url.to_string(),
        }
    }

    /// Returns a new namespace for keys.
    pub fn namespace(&self) -> RedisNamespace {
        let external = matches!(self.hosting, Hosting::External(_));
        RedisNamespace { url: self.url(), prefix: format!("{}:", unique()), external }
    }

    async fn external(url: Url) -> Result<Self, Error> {
        let ping = async {
            let mut connection = connect(url.as_str()).await?;
            redis::cmd("PING").exec_async(&mut connection).await
        };
        external::check(VARIABLE, &url, async { ping.await.map_err(|e| e.to_string()) }).await?;
        let kind = RedisKind { program: PathBuf::new(), options: RedisBuilder::default() };
        Ok(Self { kind, hosting: Hosting::External(url) })
    }
}

impl RedisBuilder {
    /// Logs every change before the response, so that acknowledged changes survive a kill.
    pub fn appendonly(mut self) -> Self {
        self.log = true;
        self
    }

    /// [`appendonly`](Self::appendonly) with the log on a real disk, for benchmarks.
    pub fn durable(mut self) -> Self {
        self.on_disk = true;
        self.appendonly()
    }

    /// Runs in cluster mode with one node, which refuses commands and scripts whose keys are in several slots. Needs Redis 7.
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// Adds an argument for `redis-server`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts the server and waits until it is ready.
    pub async fn start(self) -> Result<Redis, Error> {
        Server::start_new(self.kind()?).await
    }

    fn kind(self) -> Result<RedisKind, Error> {
        let program = installed::find(&["redis-server", "valkey-server"]).ok_or(Error::Missing {
            program: "redis-server",
            remedy: "`cargo xtask test` installs it, or set REDIS_URL to a running server",
        })?;
        Ok(RedisKind { program, options: self })
    }
}

impl ServerKind for RedisKind {
    fn name(&self) -> &'static str {
        "redis-server"
    }

    fn on_disk(&self) -> bool {
        self.options.on_disk
    }

    fn prepare(&self, location: &ServerLocation) -> Result<(), Error> {
        std::fs::create_dir(location.data()).map_err(|error| Error::failed(self.name(), error))
    }

    fn launch(&self, location: &ServerLocation) -> Launch {
        let log = if self.options.log { ["yes", "always"] } else { ["no", "no"] };
        let launch = Launch::new(&self.program)
            .args(["--bind", "127.0.0.1", "--port"])
            .arg(location.port.to_string())
            .arg("--dir")
            .arg(location.data())
            .args(["--save", "", "--appendonly", log[0], "--appendfsync", log[1]])
            .args(&self.options.args);
        if !self.options.cluster {
            return launch;
        }
        launch.args(["--cluster-enabled", "yes", "--cluster-port"]).arg(location.second_port.to_string())
    }

    async fn check_ready(&self, location: &ServerLocation) -> Result<(), String> {
        let mut connection =
            connect(&format!("redis://{}", location.addr())).await.map_err(|e| e.to_string())?;
        // PING is refused while the server loads its log; CONFIG is not.
        redis::cmd("PING").exec_async(&mut connection).await.map_err(|e| e.to_string())?;
        let config = redis::cmd("CONFIG").arg("GET").arg("dir").query_async(&mut connection).await;
        let (_, folder): (String, String) = config.map_err(|e| e.to_string())?;
        if Path::new(&folder) != location.data() {
            return Err(format!("another Redis answers, in {folder}"));
        }
        if self.options.cluster { claim_all_slots(&mut connection).await } else { Ok(()) }
    }
}

/// Assigns all slots to a node in cluster mode. The node serves them some seconds later.
async fn claim_all_slots(connection: &mut MultiplexedConnection) -> Result<(), String> {
    let info = redis::cmd("CLUSTER").arg("INFO").query_async(connection).await;
    let info: String = info.map_err(|e| e.to_string())?;
    if !info.contains("cluster_slots_assigned:16384") {
        let mut add = redis::cmd("CLUSTER");
        add.arg("ADDSLOTSRANGE").arg(0).arg(16_383);
        add.exec_async(connection).await.map_err(|e| e.to_string())?;
    }
    if info.contains("cluster_state:ok") { Ok(()) } else { Err("does not serve its slots yet".to_owned()) }
}

impl RedisNamespace {
    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the prefix of all keys. It ends with a colon.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns a key with the prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Connects to the server.
    ///
    /// # Panics
    /// If the connection fails.
    pub async fn connect(&self) -> MultiplexedConnection {
        connect(&self.url).await.expect("the Redis server accepts a connection")
    }
}

impl Drop for RedisNamespace {
    fn drop(&mut self) {
        if self.external {
            let (url, pattern) = (self.url.clone(), format!("{}*", self.prefix));
            external::clean_up(async move {
                let mut connection = connect(&url).await?;
                let mut keys: Vec<String> = Vec::new();
                let mut found = connection.scan_match::<_, String>(pattern).await?;
                while let Some(key) = found.next_item().await {
                    keys.push(key?);
                }
                drop(found);
                if keys.is_empty() { Ok(()) } else { connection.unlink(keys).await }
            });
        }
    }
}

async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    redis::Client::open(url)?.get_multiplexed_async_connection().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_detects_taken_port;

    #[tokio::test]
    async fn taken_port_is_detected() {
        let kind = || Redis::builder().kind();
        assert_detects_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }
}

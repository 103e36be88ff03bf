//! Redis.

use std::path::{Path, PathBuf};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;
use url::Url;

use crate::process::Launch;
use crate::server::{Home, Kind, Place, Server};
use crate::unique::unique;
use crate::{Error, external, installed};

const VARIABLE: &str = "REDIS_URL";

/// A Redis server. What it holds survives [`kill`](Server::kill) only with
/// [`appendonly`](RedisBuilder::appendonly) or [`durable`](RedisBuilder::durable).
pub type Redis = Server<RedisKind>;

/// A Redis server about to be started.
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    log: bool,
    on_disk: bool,
    cluster: bool,
    args: Vec<String>,
}

/// How Redis is started.
#[derive(Debug)]
pub struct RedisKind {
    program: PathBuf,
    options: RedisBuilder,
}

/// Keys of one test's own on a Redis server.
#[derive(Debug)]
pub struct Keyspace {
    url: String,
    prefix: String,
    external: bool,
}

impl Redis {
    /// The one of this test process: at `REDIS_URL`, or else started now.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Redis> = OnceCell::const_new();
        let start = || async {
            match external::named_by(VARIABLE, |text| external::parse_url(text, "redis"))? {
                Some(url) => Self::external(url).await,
                None => Self::private().await,
            }
        };
        SHARED.get_or_try_init(start).await
    }

    /// The one of this test process that runs in cluster mode, always started by us.
    pub async fn shared_cluster() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Redis> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::builder().cluster().start()).await
    }

    /// One for the caller alone, to break.
    pub async fn private() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// One for the caller alone, with options.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// `redis://…`
    pub fn url(&self) -> String {
        match &self.home {
            Home::Own(own) => format!("redis://{}", own.place().addr()),
            Home::External(url) => url.to_string(),
        }
    }

    /// A prefix for keys that nobody else uses.
    pub fn keyspace(&self) -> Keyspace {
        let external = matches!(self.home, Home::External(_));
        Keyspace { url: self.url(), prefix: format!("{}:", unique()), external }
    }

    async fn external(url: Url) -> Result<Self, Error> {
        let ping = async {
            let mut connection = connect(url.as_str()).await?;
            redis::cmd("PING").exec_async(&mut connection).await
        };
        external::check(VARIABLE, &url, async { ping.await.map_err(|e| e.to_string()) }).await?;
        let kind = RedisKind { program: PathBuf::new(), options: RedisBuilder::default() };
        Ok(Self { kind, home: Home::External(url) })
    }
}

impl RedisBuilder {
    /// Logs every change before it answers, so that what it has answered survives a kill.
    pub fn appendonly(mut self) -> Self {
        self.log = true;
        self
    }

    /// [`appendonly`](Self::appendonly) with the log on a real disk, for benchmarks.
    pub fn durable(mut self) -> Self {
        self.on_disk = true;
        self.appendonly()
    }

    /// In cluster mode, as the only node. It refuses commands and scripts whose keys are in several slots. Needs Redis 7.
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// One more argument for `redis-server`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts it and waits until it answers.
    pub async fn start(self) -> Result<Redis, Error> {
        Server::of(self.kind()?).await
    }

    fn kind(self) -> Result<RedisKind, Error> {
        let program = installed::find(&["redis-server", "valkey-server"]).ok_or(Error::Missing {
            program: "redis-server",
            remedy: "`cargo xtask test` installs it, or set REDIS_URL to one that runs",
        })?;
        Ok(RedisKind { program, options: self })
    }
}

impl Kind for RedisKind {
    fn name(&self) -> &'static str {
        "redis-server"
    }

    fn on_disk(&self) -> bool {
        self.options.on_disk
    }

    fn prepare(&self, place: &Place) -> Result<(), Error> {
        std::fs::create_dir(place.data()).map_err(|error| Error::failed(self.name(), error))
    }

    fn launch(&self, place: &Place) -> Launch {
        let log = if self.options.log { ["yes", "always"] } else { ["no", "no"] };
        let launch = Launch::new(&self.program)
            .args(["--bind", "127.0.0.1", "--port"])
            .arg(place.port.to_string())
            .arg("--dir")
            .arg(place.data())
            .args(["--save", "", "--appendonly", log[0], "--appendfsync", log[1]])
            .args(&self.options.args);
        if !self.options.cluster {
            return launch;
        }
        launch.args(["--cluster-enabled", "yes", "--cluster-port"]).arg(place.second_port.to_string())
    }

    async fn answers(&self, place: &Place) -> Result<(), String> {
        let mut connection =
            connect(&format!("redis://{}", place.addr())).await.map_err(|e| e.to_string())?;
        // Refused as long as it reads its log, which the next question is not.
        redis::cmd("PING").exec_async(&mut connection).await.map_err(|e| e.to_string())?;
        let asked = redis::cmd("CONFIG").arg("GET").arg("dir").query_async(&mut connection).await;
        let (_, folder): (String, String) = asked.map_err(|e| e.to_string())?;
        if Path::new(&folder) != place.data() {
            return Err(format!("another Redis answers, in {folder}"));
        }
        if self.options.cluster { owns_all_slots(&mut connection).await } else { Ok(()) }
    }
}

/// Gives a node in cluster mode all slots. It takes some seconds before it serves them.
async fn owns_all_slots(connection: &mut MultiplexedConnection) -> Result<(), String> {
    let info = redis::cmd("CLUSTER").arg("INFO").query_async(connection).await;
    let info: String = info.map_err(|e| e.to_string())?;
    if !info.contains("cluster_slots_assigned:16384") {
        let mut add = redis::cmd("CLUSTER");
        add.arg("ADDSLOTSRANGE").arg(0).arg(16_383);
        add.exec_async(connection).await.map_err(|e| e.to_string())?;
    }
    if info.contains("cluster_state:ok") { Ok(()) } else { Err("does not serve its slots yet".to_owned()) }
}

impl Keyspace {
    /// Where the server is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What all keys of this test begin with; ends with a colon.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key with the prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A connection to the server.
    ///
    /// # Panics
    /// When there is none to be had.
    pub async fn connect(&self) -> MultiplexedConnection {
        connect(&self.url).await.expect("the Redis server takes a connection")
    }
}

impl Drop for Keyspace {
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
    use crate::server::assert_notices_taken_port;

    #[tokio::test]
    async fn a_taken_port_is_noticed() {
        let kind = || Redis::builder().kind();
        assert_notices_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }
}

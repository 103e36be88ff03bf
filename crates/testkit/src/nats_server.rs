//! NATS with JetStream.

mod current;

use std::path::PathBuf;

use futures::TryStreamExt;
use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use url::Url;

use crate::process::Launch;
use crate::server::{Hosting, Server, ServerKind, ServerLocation};
use crate::unique::unique;
use crate::{Error, external, installed};

const VARIABLE: &str = "NATS_URL";
const CONFIG: &str = "nats.conf";

/// A NATS server with JetStream.
///
/// Streams with file storage survive [`kill`](Server::kill): acknowledged messages have been written to the operating system.
/// They survive a crash of the operating system only with [`sync_always`](NatsBuilder::sync_always).
pub type Nats = Server<NatsKind>;

/// The options of a NATS server.
#[derive(Clone, Debug, Default)]
pub struct NatsBuilder {
    current: bool,
    sync_always: bool,
    max_payload: Option<usize>,
    settings: String,
    args: Vec<String>,
}

/// Starts NATS.
#[derive(Debug)]
pub struct NatsKind {
    program: PathBuf,
    /// A unique name that distinguishes this server from another one at the same port.
    server_name: String,
    options: NatsBuilder,
}

/// A prefix for the streams and subjects of one test on a NATS server.
#[derive(Debug)]
pub struct NatsNamespace {
    url: String,
    prefix: String,
    external: bool,
}

impl Nats {
    /// Returns the shared server of this test process: the one at `NATS_URL`, or else a local one.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Nats> = OnceCell::const_new();
        let start = || async {
            match external::from_variable(VARIABLE, |text| external::parse_url(text, "nats"))? {
                Some(url) => Self::external(url).await,
                None => Self::private().await,
            }
        };
        SHARED.get_or_try_init(start).await
    }

    /// Returns the shared server of this test process that has the [current](NatsBuilder::current) version.
    pub async fn shared_current() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Nats> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::builder().current().start()).await
    }

    /// Starts a server that only the caller uses and may break.
    pub async fn private() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// Returns a builder for a server that only the caller uses.
    pub fn builder() -> NatsBuilder {
        NatsBuilder::default()
    }

    /// `nats://…`
    pub fn url(&self) -> String {
        match &self.hosting {
            Hosting::Local(local) => format!("nats://{}", local.location().addr()),
            Hosting::External(url) => url.to_string(),
        }
    }

    /// Returns the URL of the HTTP monitor, or `None` for an external server.
    pub fn monitor_url(&self) -> Option<String> {
        self.local().map(|local| format!("http://127.0.0.1:{}", local.location().second_port))
    }

    /// Returns a new namespace for streams and subjects.
    pub fn namespace(&self) -> NatsNamespace {
        NatsNamespace {
            url: self.url(),
            prefix: unique(),
            external: matches!(self.hosting, Hosting::External(_)),
        }
    }

    /// Returns the name that it reports, in cluster information for example. Empty for an external server.
    pub(crate) fn name(&self) -> &str {
        &self.kind.server_name
    }

    /// Replaces the additional configuration lines. A running server reloads the file asynchronously.
    pub(crate) fn reload(&mut self, settings: String) -> Result<(), Error> {
        self.kind.options.settings = settings;
        let local = self
            .local()
            .ok_or_else(|| Error::failed("nats-server", "an external server cannot be configured"))?;
        self.kind.prepare(local.location())?;
        if self.pid().is_some() {
            self.process_mut("reload")?.signal(Signal::SIGHUP);
        }
        Ok(())
    }

    async fn external(url: Url) -> Result<Self, Error> {
        let greet = async { async_nats::connect(url.as_str()).await.map(drop).map_err(|e| e.to_string()) };
        external::check(VARIABLE, &url, greet).await?;
        let kind =
            NatsKind { program: PathBuf::new(), server_name: String::new(), options: NatsBuilder::default() };
        Ok(Self { kind, hosting: Hosting::External(url) })
    }
}

impl NatsBuilder {
    /// Uses the current version of the server instead of the first one on the PATH.
    pub fn current(mut self) -> Self {
        self.current = true;
        self
    }

    /// Syncs each message to a real disk before it is acknowledged. Implies the [current](Self::current) version.
    pub fn sync_always(mut self) -> Self {
        self.sync_always = true;
        self.current()
    }

    /// Sets additional lines of the configuration file.
    pub(crate) fn settings(mut self, text: String) -> Self {
        self.settings = text;
        self
    }

    /// Sets the largest message size in bytes. The default is 1 MiB.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// Adds an argument for `nats-server`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts the server and waits until it is ready.
    pub async fn start(self) -> Result<Nats, Error> {
        Server::start_new(self.kind()?).await
    }

    fn kind(self) -> Result<NatsKind, Error> {
        let program = if self.current { current::find()? } else { installed()? };
        Ok(NatsKind { program, server_name: unique(), options: self })
    }

    fn config(&self, server_name: &str) -> String {
        let mut config = format!("server_name: {server_name}\n");
        if let Some(bytes) = self.max_payload {
            config += &format!("max_payload: {bytes}\n");
        }
        if self.sync_always {
            config += "jetstream {\n  sync_interval: always\n}\n";
        }
        config + &self.settings
    }
}

impl ServerKind for NatsKind {
    fn name(&self) -> &'static str {
        "nats-server"
    }

    fn on_disk(&self) -> bool {
        self.options.sync_always
    }

    fn prepare(&self, location: &ServerLocation) -> Result<(), Error> {
        let config = self.options.config(&self.server_name);
        std::fs::write(location.folder().join(CONFIG), config)
            .map_err(|error| Error::failed(self.name(), error))
    }

    fn launch(&self, location: &ServerLocation) -> Launch {
        Launch::new(&self.program)
            .arg("-c")
            .arg(location.folder().join(CONFIG))
            .args([
                "-a",
                "127.0.0.1",
                "-p",
                &location.port.to_string(),
                "-m",
                &location.second_port.to_string(),
            ])
            .args(["-js", "-sd"])
            .arg(location.data())
            .args(&self.options.args)
    }

    async fn check_ready(&self, location: &ServerLocation) -> Result<(), String> {
        let connection = TcpStream::connect(location.addr()).await.map_err(|e| e.to_string())?;
        let mut greeting = String::new();
        BufReader::new(connection).read_line(&mut greeting).await.map_err(|e| e.to_string())?;
        let about: serde_json::Value = greeting
            .strip_prefix("INFO ")
            .and_then(|info| serde_json::from_str(info).ok())
            .ok_or("no NATS server answers")?;
        match (about["server_name"] == *self.server_name, about["jetstream"] == true) {
            (true, true) => Ok(()),
            (true, false) => Err("JetStream is not ready".to_owned()),
            (false, _) => Err(format!("another NATS server answers, {}", about["server_name"])),
        }
    }
}

impl NatsNamespace {
    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the prefix of all streams and subjects: letters, digits and `_`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the name of a stream with the prefix.
    pub fn stream(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    /// Returns a subject below the prefix.
    pub fn subject(&self, subject: &str) -> String {
        format!("{}.{subject}", self.prefix)
    }

    /// Connects to the server.
    ///
    /// # Panics
    /// If the connection fails.
    pub async fn connect(&self) -> async_nats::Client {
        async_nats::connect(&self.url).await.expect("the NATS server accepts a connection")
    }
}

impl Drop for NatsNamespace {
    fn drop(&mut self) {
        if self.external {
            let (url, prefix) = (self.url.clone(), self.prefix.clone());
            external::clean_up(async move {
                let client = async_nats::connect(url).await?;
                let jetstream = async_nats::jetstream::new(client);
                let names: Vec<String> = jetstream.stream_names().try_collect().await?;
                for name in names.iter().filter(|name| name.starts_with(&prefix)) {
                    jetstream.delete_stream(name).await?;
                }
                Ok::<_, async_nats::Error>(())
            });
        }
    }
}

fn installed() -> Result<PathBuf, Error> {
    installed::find(&["nats-server"]).ok_or(Error::Missing {
        program: "nats-server",
        remedy: "`cargo xtask test` installs it, or set NATS_URL to a running server",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_detects_taken_port;

    #[tokio::test]
    async fn taken_port_is_detected() {
        let kind = || Nats::builder().kind();
        assert_detects_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }

    #[test]
    fn configuration_holds_only_the_chosen_options() {
        assert_eq!(NatsBuilder::default().config("n"), "server_name: n\n");
        let all = NatsBuilder::default().max_payload(5).sync_always().config("n");
        assert_eq!(all, "server_name: n\nmax_payload: 5\njetstream {\n  sync_interval: always\n}\n");
    }
}

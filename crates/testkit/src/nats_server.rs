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
use crate::server::{Home, Kind, Place, Server};
use crate::unique::unique;
use crate::{Error, external, installed};

const VARIABLE: &str = "NATS_URL";
const CONFIG: &str = "nats.conf";

/// A NATS server with JetStream.
///
/// Streams with file storage survive [`kill`](Server::kill): what is acknowledged has been handed to
/// the operating system, which outlives the server. Only [`sync_always`](NatsBuilder::sync_always)
/// makes it outlive the operating system too.
pub type Nats = Server<NatsKind>;

/// A NATS server about to be started.
#[derive(Clone, Debug, Default)]
pub struct NatsBuilder {
    current: bool,
    sync_always: bool,
    max_payload: Option<usize>,
    settings: String,
    args: Vec<String>,
}

/// How NATS is started.
#[derive(Debug)]
pub struct NatsKind {
    program: PathBuf,
    /// How a server of ours is told from a stranger at the same port.
    server_name: String,
    options: NatsBuilder,
}

/// Streams and subjects of one test's own on a NATS server.
#[derive(Debug)]
pub struct Streams {
    url: String,
    prefix: String,
    external: bool,
}

impl Nats {
    /// The one of this test process: at `NATS_URL`, or else started now.
    pub async fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Nats> = OnceCell::const_new();
        let start = || async {
            match external::named_by(VARIABLE, |text| external::parse_url(text, "nats"))? {
                Some(url) => Self::external(url).await,
                None => Self::private().await,
            }
        };
        SHARED.get_or_try_init(start).await
    }

    /// The one of this test process that has the [current](NatsBuilder::current) version.
    pub async fn shared_current() -> Result<&'static Self, Error> {
        static SHARED: OnceCell<Nats> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::builder().current().start()).await
    }

    /// One for the caller alone, to break.
    pub async fn private() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// One for the caller alone, with options.
    pub fn builder() -> NatsBuilder {
        NatsBuilder::default()
    }

    /// `nats://…`
    pub fn url(&self) -> String {
        match &self.home {
            Home::Own(own) => format!("nats://{}", own.place().addr()),
            Home::External(url) => url.to_string(),
        }
    }

    /// Where it tells about itself over HTTP; unknown for an external one.
    pub fn monitor_url(&self) -> Option<String> {
        self.own().map(|own| format!("http://127.0.0.1:{}", own.place().second_port))
    }

    /// A prefix for streams and subjects that nobody else uses.
    pub fn streams(&self) -> Streams {
        Streams { url: self.url(), prefix: unique(), external: matches!(self.home, Home::External(_)) }
    }

    /// How it calls itself, in cluster information for example. Empty for an external one.
    pub(crate) fn name(&self) -> &str {
        &self.kind.server_name
    }

    /// Replaces the further lines of its configuration. A server that runs reads the file again, soon.
    pub(crate) fn reload(&mut self, settings: String) -> Result<(), Error> {
        self.kind.options.settings = settings;
        let own = self.own().ok_or_else(|| Error::failed("nats-server", "is not ours to configure"))?;
        self.kind.prepare(own.place())?;
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
        Ok(Self { kind, home: Home::External(url) })
    }
}

impl NatsBuilder {
    /// The current version of the server, rather than the first one on the PATH.
    pub fn current(mut self) -> Self {
        self.current = true;
        self
    }

    /// Syncs each message to a real disk before acknowledging it, as the [current](Self::current) version can.
    pub fn sync_always(mut self) -> Self {
        self.sync_always = true;
        self.current()
    }

    /// Further lines for the configuration file.
    pub(crate) fn settings(mut self, text: String) -> Self {
        self.settings = text;
        self
    }

    /// The largest message, in bytes; 1 MiB unless told.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// One more argument for `nats-server`.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts it and waits until it answers.
    pub async fn start(self) -> Result<Nats, Error> {
        Server::of(self.kind()?).await
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

impl Kind for NatsKind {
    fn name(&self) -> &'static str {
        "nats-server"
    }

    fn on_disk(&self) -> bool {
        self.options.sync_always
    }

    fn prepare(&self, place: &Place) -> Result<(), Error> {
        let config = self.options.config(&self.server_name);
        std::fs::write(place.folder().join(CONFIG), config).map_err(|error| Error::failed(self.name(), error))
    }

    fn launch(&self, place: &Place) -> Launch {
        Launch::new(&self.program)
            .arg("-c")
            .arg(place.folder().join(CONFIG))
            .args(["-a", "127.0.0.1", "-p", &place.port.to_string(), "-m", &place.second_port.to_string()])
            .args(["-js", "-sd"])
            .arg(place.data())
            .args(&self.options.args)
    }

    async fn answers(&self, place: &Place) -> Result<(), String> {
        let connection = TcpStream::connect(place.addr()).await.map_err(|e| e.to_string())?;
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

impl Streams {
    /// Where the server is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What all streams and subjects of this test begin with: letters, digits and `_`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of a stream with the prefix.
    pub fn stream(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    /// A subject below the prefix.
    pub fn subject(&self, subject: &str) -> String {
        format!("{}.{subject}", self.prefix)
    }

    /// A connection to the server.
    ///
    /// # Panics
    /// When there is none to be had.
    pub async fn connect(&self) -> async_nats::Client {
        async_nats::connect(&self.url).await.expect("the NATS server takes a connection")
    }
}

impl Drop for Streams {
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
        remedy: "`cargo xtask test` installs it, or set NATS_URL to one that runs",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_notices_taken_port;

    #[tokio::test]
    async fn a_taken_port_is_noticed() {
        let kind = || Nats::builder().kind();
        assert_notices_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }

    #[test]
    fn the_configuration_says_only_what_was_asked_for() {
        assert_eq!(NatsBuilder::default().config("n"), "server_name: n\n");
        let all = NatsBuilder::default().max_payload(5).sync_always().config("n");
        assert_eq!(all, "server_name: n\nmax_payload: 5\njetstream {\n  sync_interval: always\n}\n");
    }
}

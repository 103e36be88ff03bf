//! Settings of the event bus.

use std::path::PathBuf;
use std::time::Duration;

use ::config::{Reader, Section, Server, StoreUrl};
use url::Url;

/// Settings of the event bus.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: BusUrl,
    /// How long one request may take, connecting included.
    pub timeout: Duration,
    /// A NATS credentials file, where the server asks for one.
    pub credentials: Option<PathBuf>,
    /// The server's monitoring address, by which `doctor` reads settings that a client cannot see.
    pub monitor_url: Option<Url>,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            url: reader.get("url"),
            timeout: reader.get_within("timeout", Duration::from_millis(10)..=Duration::from_secs(60)),
            credentials: reader.optional("credentials"),
            monitor_url: reader.optional("monitor_url"),
        }
    }
}

/// `memory:` or `nats://…` (`tls://…` with TLS).
pub type BusUrl = StoreUrl<Nats>;

/// The server that the bus can be.
#[derive(Debug)]
pub enum Nats {}

impl Server for Nats {
    const SCHEMES: &'static [&'static str] = &["nats", "tls"];
    const EXAMPLE: &'static str = "nats://USER:PASSWORD@HOST:PORT";
}

//! Settings of the event bus.

use std::path::PathBuf;
use std::time::Duration;

use ::config::{Reader, Section, Server, StoreUrl};
use url::Url;

use crate::event::{SUBJECT_FORM, is_subject};

/// Settings of the event bus.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: BusUrl,
    /// How long one request may take, connecting included.
    pub timeout: Duration,
    /// The name of the stream that stores our events.
    pub stream: String,
    /// The prefix of the subjects of our events.
    pub subjects: String,
    /// How long an event is stored.
    pub max_age: Duration,
    /// On how many servers an event is stored.
    pub replicas: u32,
    /// How many events may be in flight to the stream.
    pub max_in_flight: u32,
    /// How many events the embedded bus holds.
    pub memory_events: u32,
    /// A NATS credentials file, if the server requires one.
    pub credentials: Option<PathBuf>,
    /// The server's monitoring address, where `doctor` reads settings that a client cannot see.
    pub monitor_url: Option<Url>,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        let config = Self {
            url: reader.get("url"),
            timeout: reader.get_within("timeout", Duration::from_millis(10)..=Duration::from_secs(60)),
            stream: reader.get("stream"),
            subjects: reader.get("subjects"),
            max_age: reader.get_within("max_age", Duration::from_secs(60)..=365 * DAY),
            replicas: reader.get_within("replicas", 1..=5),
            max_in_flight: reader.get_within("max_in_flight", 1..=100_000),
            memory_events: reader.get_within("memory_events", 1..=100_000_000),
            credentials: reader.optional("credentials"),
            monitor_url: reader.optional("monitor_url"),
        };
        reader.check(&["stream"], is_name(&config.stream), || {
            "must be a name of letters, digits, `_` and `-`".to_owned()
        });
        reader.check(&["subjects"], is_subject(&config.subjects), || {
            format!("must be {SUBJECT_FORM}, such as \"playhouse\" or \"games.playhouse\"")
        });
        config
    }
}

/// Returns whether NATS accepts this as the name of a stream or consumer.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

/// `memory:` or `nats://…` (`tls://…` with TLS). Lists several servers for a cluster.
pub type BusUrl = StoreUrl<Nats>;

/// The kind of server that the bus can use.
#[derive(Debug)]
pub enum Nats {}

impl Server for Nats {
    const SCHEMES: &'static [&'static str] = &["nats", "tls"];
    const EXAMPLE: &'static str = "nats://USER:PASSWORD@HOST:PORT";
    const SEEDS: bool = true;
}

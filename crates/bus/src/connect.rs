//! Opening the bus and connecting to NATS.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, ConnectOptions};
use base::Backoff;
use base::finding::Finding;
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

use crate::doctor::examine_max_payload;
use crate::lookup::Lookups;
use crate::memory::Memory;
use crate::publish_state::PublishState;
use crate::stream::Stream;
use crate::{Config, Error, Event};

/// The client's default waits up to 4 s between attempts, so it finds a recovered server late.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// After three unanswered pings the client moves to another server. Its default is a minute between pings.
const MIN_PING_INTERVAL: Duration = Duration::from_millis(500);
const TLS: &str = "tls";

/// The open bus. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub enum Bus {
    Memory(Memory),
    Nats(Box<Nats>),
}

/// A connection to NATS.
#[derive(Clone, Debug)]
pub struct Nats {
    pub(crate) client: Client,
    pub(crate) jetstream: Context,
    pub(crate) timeout: Duration,
    pub(crate) stream: Stream,
    pub(crate) state: PublishState,
    pub(crate) lookups: Lookups,
}

impl Bus {
    /// Opens the bus, checks that it answers, and creates the stream of our events if it does not exist.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        if config.url.is_embedded() {
            return Ok(Self::Memory(Memory::new(config)));
        }
        let nats = Nats::connect(config, config.url.servers()).await?;
        nats.ensure_stream().await?;
        if let Some(Finding { what, advice, .. }) = examine_max_payload(&nats) {
            tracing::warn!(advice, "NATS {what}");
        }
        Ok(Self::Nats(Box::new(nats)))
    }

    /// Publishes events in their order. Returns one result per event: `Ok` means that the stream has acknowledged the event, now or
    /// at an earlier publication.
    ///
    /// Takes at most `bus.timeout` in total. An event that failed may still have been stored, or be stored later, unless the error is
    /// [permanent](Error::is_permanent). Publish it again with the same id. Within [`DUPLICATE_WINDOW`](crate::DUPLICATE_WINDOW) the
    /// stream stores it only once; after that, call [`find_stored`](Self::find_stored) first. A repeated event comes after those stored
    /// meanwhile.
    pub async fn publish(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        match self {
            Self::Memory(memory) => memory.publish(events),
            Self::Nats(nats) => nats.publish(events).await,
        }
    }

    /// Checks that the bus and JetStream answer, and that the bus stores events. Fails while nothing that this process publishes is
    /// stored.
    pub async fn ping(&self) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => memory.state().check(),
            Self::Nats(nats) => {
                nats.ping().await?;
                nats.state.check()
            }
        }
    }

    /// Flushes pending messages and closes the connection.
    pub async fn close(&self) {
        if let Self::Nats(nats) = self {
            // The process stops: there is no caller left to report a failure to.
            let _ = tokio::time::timeout(nats.timeout, nats.client.drain()).await;
        }
    }
}

/// Adds the credentials of the URL, which the client ignores. A user without a password is a token.
fn with_credentials(options: ConnectOptions, url: &Url) -> ConnectOptions {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    match (url.username(), url.password()) {
        ("", _) => options,
        (user, Some(password)) => options.user_and_password(decode(user), decode(password)),
        (token, None) => options.token(decode(token)),
    }
}

/// Removes the credentials of the URL, which the client would log.
fn without_credentials(url: &Url) -> String {
    let mut address = url.clone();
    let _ = address.set_username("").and(address.set_password(None));
    address.to_string()
}

impl Nats {
    /// Connects to any of the seed servers and checks that JetStream answers. Changes nothing on the server.
    ///
    /// The client discovers the other servers of a cluster through the first, and fails over to them.
    pub(crate) async fn connect(config: &Config, seeds: &[Url]) -> Result<Self, Error> {
        let mut options = ConnectOptions::new()
            .name("playhouse")
            .connection_timeout(config.timeout)
            .request_timeout(Some(config.timeout))
            .ping_interval((config.timeout / 2).max(MIN_PING_INTERVAL))
            // Discovered servers have no scheme: without this the client could send them a password in clear text.
            .require_tls(seeds.iter().any(|seed| seed.scheme() == TLS))
            .reconnect_delay_callback(|attempts| RECONNECT.after(attempts.try_into().unwrap_or(u32::MAX)));
        // All seeds have the same credentials, or only the first has any.
        if let Some(first) = config.url.server() {
            options = with_credentials(options, first);
        }
        if let Some(path) = &config.credentials {
            let read = options.credentials_file(path).await;
            options = read.map_err(|error| Error::Credentials(error.into()))?;
        }
        let seeds: Vec<String> = seeds.iter().map(without_credentials).collect();
        let client = options.connect(seeds).await?;
        let jetstream = ContextBuilder::new()
            .timeout(config.timeout)
            // How long an abandoned acknowledgement counts against `max_in_flight`.
            .ack_timeout(config.timeout)
            .max_ack_inflight(config.max_in_flight.try_into().unwrap_or(usize::MAX))
            .build(client.clone());
        let nats = Self {
            client,
            jetstream,
            timeout: config.timeout,
            stream: Stream::new(config),
            state: PublishState::new(config.timeout),
            lookups: Lookups::default(),
        };
        nats.ping().await?;
        Ok(nats)
    }

    /// Requests the account information from JetStream, in the form that every server version understands.
    async fn ping(&self) -> Result<(), Error> {
        const ACCOUNT_INFO: &str = "$JS.API.INFO";
        // Without a connection a request would be buffered instead of failing.
        let response = tokio::time::timeout(self.timeout, self.client.request(ACCOUNT_INFO, Bytes::new()));
        let message = match response.await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                return Err(Error::NoJetStream);
            }
            Ok(Err(error)) => return Err(Error::unreachable(error)),
            Err(elapsed) => return Err(Error::unreachable(elapsed)),
        };
        // An error in the response means that the account may not use JetStream.
        let refused =
            serde_json::from_slice(&message.payload).is_ok_and(|info: Value| info.get("error").is_some());
        if refused { Err(Error::NoJetStream) } else { Ok(()) }
    }
}

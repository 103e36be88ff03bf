//! Opening the bus.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::{Context, ContextBuilder};
use async_nats::{Client, ConnectOptions};
use base::Backoff;
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

use crate::lookup::Lookups;
use crate::memory::Memory;
use crate::publish_state::PublishState;
use crate::stream::Stream;
use crate::{Config, Error, Event};

/// The client's own default waits up to 4 s between attempts, so that a server that is back is found late.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// A server that answers none of three pings is left for another one. The client's own default is a minute between pings.
const SHORTEST_PING: Duration = Duration::from_millis(500);
const TLS: &str = "tls";

/// The open bus. Clones share its connection.
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
    /// Opens the bus, makes sure that it answers, and makes the stream of our events if there is none.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        if config.url.is_embedded() {
            return Ok(Self::Memory(Memory::new(config)));
        }
        let nats = Nats::connect(config, config.url.servers()).await?;
        nats.ensure_stream().await?;
        Ok(Self::Nats(Box::new(nats)))
    }

    /// Publishes events in their order. The results are those of the events, one by one: `Ok` means that the stream has
    /// acknowledged this event, now or when it was published before.
    ///
    /// All of it takes at most `bus.timeout`. An event that failed may have been stored all the same, or be stored later, unless the error
    /// [is hopeless](Error::is_hopeless). Publish it again with the same id: within [`DUPLICATE_WINDOW`](crate::DUPLICATE_WINDOW) it is stored only
    /// once; after that, [look](Self::find_stored) first. It then stands behind those that were stored meanwhile.
    pub async fn publish(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        match self {
            Self::Memory(memory) => memory.publish(events),
            Self::Nats(nats) => nats.publish(events).await,
        }
    }

    /// Whether the bus answers, JetStream included, and takes events: it fails while nothing that this process publishes is
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

    /// Sends what is still to be sent and ends the connection.
    pub async fn close(&self) {
        if let Self::Nats(nats) = self {
            // There is nobody left to tell.
            let _ = tokio::time::timeout(nats.timeout, nats.client.drain()).await;
        }
    }
}

/// The client does not look for credentials in the address. A user without a password is a token.
fn with_credentials(options: ConnectOptions, url: &Url) -> ConnectOptions {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    match (url.username(), url.password()) {
        ("", _) => options,
        (user, Some(password)) => options.user_and_password(decode(user), decode(password)),
        (token, None) => options.token(decode(token)),
    }
}

/// The client would write them to its log.
fn without_credentials(url: &Url) -> String {
    let mut address = url.clone();
    let _ = address.set_username("").and(address.set_password(None));
    address.to_string()
}

impl Nats {
    /// Connects to any of the seeds and makes sure that JetStream answers. Changes nothing on the server.
    ///
    /// The client learns of the other servers of a cluster from the one that it is connected to, and goes to another when that one is
    /// away.
    pub(crate) async fn connect(config: &Config, seeds: &[Url]) -> Result<Self, Error> {
        let mut options = ConnectOptions::new()
            .name("playhouse")
            .connection_timeout(config.timeout)
            .request_timeout(Some(config.timeout))
            .ping_interval((config.timeout / 2).max(SHORTEST_PING))
            // Servers that are learned of have no scheme: without this a password could be sent to them in the clear.
            .require_tls(seeds.iter().any(|seed| seed.scheme() == TLS))
            .reconnect_delay_callback(|attempts| RECONNECT.after(attempts.try_into().unwrap_or(u32::MAX)));
        // All seeds have the same ones, or only the first has them.
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
            // How long an acknowledgement that nobody awaits any more takes up a place.
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

    /// Asks JetStream about our account, in the form that every version of the server understands.
    async fn ping(&self) -> Result<(), Error> {
        const ACCOUNT_INFO: &str = "$JS.API.INFO";
        // While the connection is away a request would wait to be sent rather than fail.
        let asked = tokio::time::timeout(self.timeout, self.client.request(ACCOUNT_INFO, Bytes::new()));
        let answer = match asked.await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                return Err(Error::NoJetStream);
            }
            Ok(Err(error)) => return Err(Error::unreachable(error)),
            Err(elapsed) => return Err(Error::unreachable(elapsed)),
        };
        // An error instead of the information means that the account may not use it.
        let refused =
            serde_json::from_slice(&answer.payload).is_ok_and(|answer: Value| answer.get("error").is_some());
        if refused { Err(Error::NoJetStream) } else { Ok(()) }
    }
}

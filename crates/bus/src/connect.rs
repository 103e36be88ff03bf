//! Opening the bus.

use std::time::Duration;

use async_nats::jetstream::context::AccountErrorKind;
use async_nats::{Client, ConnectOptions, jetstream};
use base::Backoff;

use crate::{Config, Error};

/// The client's own default waits up to 4 s between attempts, so that a server that is back is found late.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// The open bus. Clones share its connection.
#[derive(Clone, Debug)]
pub enum Bus {
    Memory,
    Nats(Box<Nats>),
}

/// A connection to NATS.
#[derive(Clone, Debug)]
pub struct Nats {
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    timeout: Duration,
}

impl Bus {
    /// Opens the bus and makes sure that it answers.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let Some(url) = config.url.server() else { return Ok(Self::Memory) };
        let mut options = ConnectOptions::new()
            .name("playhouse")
            .connection_timeout(config.timeout)
            .request_timeout(Some(config.timeout))
            .reconnect_delay_callback(|attempts| RECONNECT.after(attempts.try_into().unwrap_or(u32::MAX)));
        if let Some(path) = &config.credentials {
            options = options.credentials_file(path).await.map_err(Error::Credentials)?;
        }
        let client = options.connect(url.as_str()).await?;
        let jetstream = jetstream::ContextBuilder::new().timeout(config.timeout).build(client.clone());
        let bus = Self::Nats(Box::new(Nats { client, jetstream, timeout: config.timeout }));
        bus.ping().await?;
        Ok(bus)
    }

    /// Whether the bus answers, JetStream included.
    pub async fn ping(&self) -> Result<(), Error> {
        let Self::Nats(nats) = self else { return Ok(()) };
        // While the connection is away a request would wait to be sent rather than fail.
        let asked = tokio::time::timeout(nats.timeout, nats.jetstream.query_account());
        match asked.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => match error.kind() {
                AccountErrorKind::JetStreamUnavailable => Err(Error::NoJetStream),
                _ => Err(Error::Unreachable(error.into())),
            },
            Err(elapsed) => Err(Error::Unreachable(elapsed.into())),
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

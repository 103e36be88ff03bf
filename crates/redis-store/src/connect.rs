//! Opens the store and its connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use redis::aio::{ConnectionManager, ConnectionManagerConfig, PubSubSink};
use redis::{IntoConnectionInfo, Msg};

use crate::{Config, Error, HashTags, KeySpace, Trial};

/// The open store. Cheap to clone; clones share its connection.
#[derive(Clone, Debug)]
pub enum RedisStore {
    Memory,
    Redis(Redis),
}

/// A connection to Redis.
#[derive(Clone)]
pub struct Redis {
    /// One multiplexed connection. It is faster than a pool, because concurrent commands are sent together.
    pub connection: ConnectionManager,
    client: Arc<redis::Client>,
    timeout: Duration,
    hash_tags: HashTags,
}

impl RedisStore {
    /// Opens the store and pings it.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        match config.url.server() {
            Some(url) => Ok(Self::Redis(Redis::open(url.as_str(), config.timeout).await?)),
            None => Ok(Self::Memory),
        }
    }

    /// Fails with [`Error::Unfit`] on a server that evicts keys, is a cluster, or rejects one of the scripts.
    pub async fn require_fit(&self, trials: &[Trial]) -> Result<(), Error> {
        match self {
            Self::Memory => Ok(()),
            Self::Redis(redis) => redis.require_fit(trials).await,
        }
    }

    /// Checks whether the store answers.
    pub async fn ping(&self) -> Result<(), Error> {
        match self {
            Self::Memory => Ok(()),
            Self::Redis(redis) => redis.ping().await,
        }
    }
}

impl Redis {
    /// Opens a connection and pings the server.
    pub async fn open(url: &str, timeout: Duration) -> Result<Self, Error> {
        let info = url.into_connection_info()?;
        let protocol = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(protocol))?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout))
            // The caller decides what to retry. The next command reconnects.
            .set_number_of_retries(0);
        within(timeout, async {
            let connection = ConnectionManager::new_with_config(client.clone(), settings).await?;
            // Off until the client supports Redis Cluster, so that keys keep their names.
            let hash_tags = HashTags::Off;
            let redis = Self { connection, client: Arc::new(client), timeout, hash_tags };
            redis.ping().await?;
            Ok(redis)
        })
        .await
    }

    /// Sets whether keys have hash tags.
    #[must_use]
    pub fn with_hash_tags(mut self, hash_tags: HashTags) -> Self {
        self.hash_tags = hash_tags;
        self
    }

    /// Returns the key space of a service on this server.
    pub fn key_space(&self, service: &str, prefix: &str) -> KeySpace {
        KeySpace::new(service, prefix, self.hash_tags)
    }

    /// Checks whether the server answers.
    pub async fn ping(&self) -> Result<(), Error> {
        Ok(redis::cmd("PING").query_async(&mut self.connection.clone()).await?)
    }

    /// Publishes each payload on its channel, all in one round trip. Returns how many subscribers received each.
    pub async fn publish(
        &self,
        messages: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Result<Vec<u64>, Error> {
        let mut pipe = redis::pipe();
        for (channel, payload) in messages {
            pipe.publish(channel, payload);
        }
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        Ok(pipe.query_async(&mut self.connection.clone()).await?)
    }

    /// Subscribes to channels on a new connection. Returns the stream of their messages, which ends when the connection is lost. The
    /// connection is pinged after it was silent for `ping_after`.
    pub async fn subscribe(
        &self,
        channels: &[String],
        ping_after: Duration,
    ) -> Result<impl Stream<Item = Msg> + Send + use<>, Error> {
        let (mut subscribed, messages) = self.listen(ping_after).await?;
        subscribed.add(channels).await?;
        Ok(messages)
    }

    /// Opens a connection for subscriptions, without channels at first. See [`subscribe`](Self::subscribe).
    pub async fn listen(
        &self,
        ping_after: Duration,
    ) -> Result<(Channels, impl Stream<Item = Msg> + Send + use<>), Error> {
        let timeout = self.timeout;
        let pubsub = within(timeout, async { Ok(self.client.get_async_pubsub().await?) }).await?;
        let (sink, messages) = pubsub.split();
        let channels = Channels { sink: sink.clone(), timeout };
        let messages =
            futures::stream::unfold((sink, messages), move |(mut sink, mut messages)| async move {
                loop {
                    match tokio::time::timeout(ping_after, messages.next()).await {
                        Ok(message) => return Some((message?, (sink, messages))),
                        // A half-open connection never ends by itself.
                        Err(_) => match tokio::time::timeout(timeout, sink.ping::<redis::Value>()).await {
                            Ok(Ok(_)) => {}
                            _ => return None,
                        },
                    }
                }
            });
        Ok((channels, messages))
    }
}

/// The channels of a subscription.
#[derive(Clone, Debug)]
pub struct Channels {
    sink: PubSubSink,
    timeout: Duration,
}

impl Channels {
    /// Subscribes to more channels. Every message that is published on them after this returns is received.
    pub async fn add(&mut self, channels: &[String]) -> Result<(), Error> {
        let Self { sink, timeout } = self;
        within(*timeout, async { Ok(sink.subscribe(channels).await?) }).await
    }

    pub async fn remove(&mut self, channels: &[String]) -> Result<(), Error> {
        let Self { sink, timeout } = self;
        within(*timeout, async { Ok(sink.unsubscribe(channels).await?) }).await
    }
}

async fn within<T>(timeout: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let result = tokio::time::timeout(timeout, work).await;
    result.unwrap_or_else(|_| Err(Error::silent()))
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

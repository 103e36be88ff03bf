//! Opening the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use redis::aio::{ConnectionManager, ConnectionManagerConfig, PubSubSink};
use redis::{IntoConnectionInfo, Msg};

use crate::{Config, Error, HashTags, KeySpace, Trial};

/// The open store. Clones share its connection.
#[derive(Clone, Debug)]
pub enum RedisStore {
    Memory,
    Redis(Redis),
}

/// A connection to Redis.
#[derive(Clone)]
pub struct Redis {
    /// One multiplexed connection, which is faster than a pool: what waits together is sent together.
    pub connection: ConnectionManager,
    client: Arc<redis::Client>,
    timeout: Duration,
    hash_tags: HashTags,
}

impl RedisStore {
    /// Opens the store and makes sure that it answers.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        match config.url.server() {
            Some(url) => Ok(Self::Redis(Redis::open(url.as_str(), config.timeout).await?)),
            None => Ok(Self::Memory),
        }
    }

    /// Fails with [`Error::Unfit`] on a server that loses keys, is a cluster, or does not run one of the scripts.
    pub async fn require_fit(&self, trials: &[Trial]) -> Result<(), Error> {
        match self {
            Self::Memory => Ok(()),
            Self::Redis(redis) => redis.require_fit(trials).await,
        }
    }

    /// Whether the store answers.
    pub async fn ping(&self) -> Result<(), Error> {
        match self {
            Self::Memory => Ok(()),
            Self::Redis(redis) => redis.ping().await,
        }
    }
}

impl Redis {
    /// Opens a connection and makes sure that it answers.
    pub async fn open(url: &str, timeout: Duration) -> Result<Self, Error> {
        let info = url.into_connection_info()?;
        let protocol = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(protocol))?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout))
            // The caller decides what is tried again; the next command connects anew.
            .set_number_of_retries(0);
        within(timeout, async {
            let connection = ConnectionManager::new_with_config(client.clone(), settings).await?;
            // The one place that chooses. They go on when the client speaks Redis Cluster; until then keys keep their names.
            let hash_tags = HashTags::Off;
            let redis = Self { connection, client: Arc::new(client), timeout, hash_tags };
            redis.ping().await?;
            Ok(redis)
        })
        .await
    }

    /// Chooses whether keys carry hash tags.
    #[must_use]
    pub fn with_hash_tags(mut self, hash_tags: HashTags) -> Self {
        self.hash_tags = hash_tags;
        self
    }

    /// Opens the key space of a service on this server.
    pub fn key_space(&self, service: &str, prefix: &str) -> KeySpace {
        KeySpace::new(service, prefix, self.hash_tags)
    }

    /// Whether it answers.
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

    /// What is published on these channels from now on. The stream ends when its connection, which is its own, is lost;
    /// `quiet` is how long nothing may arrive before the connection is asked whether it still lives.
    pub async fn subscribe(
        &self,
        channels: &[String],
        quiet: Duration,
    ) -> Result<impl Stream<Item = Msg> + Send + use<>, Error> {
        let (mut subscribed, messages) = self.listen(quiet).await?;
        subscribed.add(channels).await?;
        Ok(messages)
    }

    /// The same for channels that are chosen while it runs: none at first.
    pub async fn listen(
        &self,
        quiet: Duration,
    ) -> Result<(Channels, impl Stream<Item = Msg> + Send + use<>), Error> {
        let timeout = self.timeout;
        let pubsub = within(timeout, async { Ok(self.client.get_async_pubsub().await?) }).await?;
        let (sink, messages) = pubsub.split();
        let channels = Channels { sink: sink.clone(), timeout };
        let messages =
            futures::stream::unfold((sink, messages), move |(mut sink, mut messages)| async move {
                loop {
                    match tokio::time::timeout(quiet, messages.next()).await {
                        Ok(message) => return Some((message?, (sink, messages))),
                        // A connection that is half open never ends by itself.
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

/// Which channels are listened to.
#[derive(Clone, Debug)]
pub struct Channels {
    sink: PubSubSink,
    timeout: Duration,
}

impl Channels {
    /// Listens to more. What is published on them after this has returned is heard.
    pub async fn add(&mut self, channels: &[String]) -> Result<(), Error> {
        let Self { sink, timeout } = self;
        within(*timeout, async { Ok(sink.subscribe(channels).await?) }).await
    }

    pub async fn remove(&mut self, channels: &[String]) -> Result<(), Error> {
        let Self { sink, timeout } = self;
        within(*timeout, async { Ok(sink.unsubscribe(channels).await?) }).await
    }
}

async fn within<T>(timeout: Duration, opening: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let opened = tokio::time::timeout(timeout, opening).await;
    opened.unwrap_or_else(|_| Err(Error::silent()))
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

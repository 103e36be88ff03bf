//! Live messages: from the service that publishes them to the subscribers of a key, in every process.
//!
//! A service declares a [`Topic`] for each kind of message. A subscriber names one key and the topics that it understands
//! ([`Topics`]), and receives them all in one [`Subscription`]. Messages stay in the process where the Redis store is embedded.
//! Otherwise they go through Redis: one channel per key, to which each process subscribes that has a subscriber of the key.
//!
//! # Invariants
//! - **A live message is never the only copy.** Redis keeps none, and nobody waits for a slow subscriber. A subscriber that may
//!   have missed a message receives [`Received::Gap`] and reads the source of truth.
//! - **A key costs one Redis subscription per process**, however many topics and subscribers it has.
//! - **An unknown message is a gap, not an error.** Processes of two versions run side by side during an upgrade.
//! - **This crate knows no service.** Topics and their messages belong to the service that publishes them.
//!
//! # Failure modes
//! While Redis is away, publishing fails and subscriptions receive nothing. When it is back, every subscription receives a gap. So
//! does one that Redis confirmed too late, after the subscriber had gone on.

mod hub;
mod redis;
mod topic;

use std::sync::Arc;

use redis_store::RedisStore;
use runtime::Drain;
use runtime::lifecycle::LoopError;

use self::hub::{Hub, Hubs};
use self::redis::RedisLink;
use self::topic::encode;

pub use self::hub::{Received, Subscription};
pub use self::topic::{Key, Message, Player, Topic, Topics};

/// Publishes live messages and subscribes to them. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Live(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hubs: Hubs,
    link: Option<Arc<RedisLink>>,
}

impl Live {
    /// `prefix` begins the names of the channels in Redis.
    pub fn new(redis_store: &RedisStore, prefix: &str) -> Self {
        let link = match redis_store {
            RedisStore::Memory => None,
            RedisStore::Redis(redis) => Some(Arc::new(RedisLink::new(redis.clone(), prefix))),
        };
        Self(Arc::new(Inner { hubs: Hubs::default(), link }))
    }

    /// Publishes a message. Returns how many processes have a subscriber of its key.
    pub async fn publish<T: Topic>(
        &self,
        key: T::Key,
        message: T::Message,
    ) -> Result<u64, redis_store::Error> {
        let counts = self.publish_all::<T>(vec![(key, message)]).await?;
        Ok(counts.into_iter().sum())
    }

    /// Publishes several messages of a topic in one round trip. Returns the count for each.
    pub async fn publish_all<T: Topic>(
        &self,
        messages: Vec<(T::Key, T::Message)>,
    ) -> Result<Vec<u64>, redis_store::Error> {
        let hub = self.hub::<T::Key>();
        let Some(link) = &self.0.link else {
            let deliver = |(key, message)| u64::from(hub.deliver(&key, || Message::here::<T>(message)));
            return Ok(messages.into_iter().map(deliver).collect());
        };
        let encoded = messages.iter().map(|(key, message)| (key.channel(), encode::<T>(message))).collect();
        if T::REPEATABLE {
            // The subscribers of this process need not wait for Redis.
            for (key, message) in messages {
                hub.deliver(&key, || Message::here::<T>(message));
            }
        }
        link.publish(encoded).await
    }

    /// Subscribes to the topics `S` of a key. Each message that is published after this returns is received, or a gap in its
    /// place. Read the source of truth after it: what was published before is there.
    pub async fn subscribe<S: Topics>(&self, key: S::Key) -> Subscription<S> {
        let hub = self.hub::<S::Key>();
        let (subscription, is_first) = Subscription::<S>::open(hub, key);
        if let Some(link) = self.0.link.as_ref().filter(|_| is_first || !subscription.is_connected())
            && link.subscribe(subscription.key().channel()).await
        {
            subscription.forget_gap();
        }
        subscription
    }

    /// Returns the keys with a subscriber in this process, each with the lowest [position](Subscription::set_position) of its
    /// subscribers.
    pub fn positions<K: Key>(&self) -> Vec<(K, i64)> {
        self.hub::<K>().positions()
    }

    /// Makes the subscribers of a key in this process receive a gap.
    pub fn gap<K: Key>(&self, key: &K) {
        self.hub::<K>().gap(key);
    }

    /// Passes messages on from Redis to the subscribers of this process, until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        match &self.0.link {
            Some(link) => link.run(&self.0.hubs, drain).await,
            None => {
                drain.requested().await;
                Ok(())
            }
        }
    }

    fn hub<K: Key>(&self) -> Arc<Hub<K>> {
        self.0.hubs.of(self.0.link.as_ref())
    }
}

//! Live messages: from the service that publishes them to the subscribers of a key, in every process.
//!
//! A service declares a [`Topic`] for each kind of message. A subscriber chooses a key and a set of topics ([`Topics`]), and receives
//! all of them in one [`Subscription`]. If the Redis store is embedded, messages stay in the process. Otherwise they go through Redis,
//! with one channel per key. A process subscribes to a channel while it has a subscriber of the key.
//!
//! # Invariants
//! - **A live message is never the only copy.** Redis stores none, and no publisher waits for a slow subscriber. A subscriber
//!   that may have missed a message receives [`SubscriptionEvent::Gap`] and reads the source of truth.
//! - **A key costs one Redis subscription per process**, however many topics and subscribers it has.
//! - **An unknown message is a gap, not an error.** Processes of two versions run side by side during an upgrade.
//! - **This crate is independent of services.** Topics and their messages belong to the service that publishes them.
//!
//! # Failure modes
//! While Redis is unreachable, publishing fails and subscriptions receive nothing. After the reconnect every subscription receives a
//! gap. A subscription that Redis confirms only after the timeout receives a gap too.

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

pub use self::hub::{Subscription, SubscriptionEvent};
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
    /// Creates the live messages of a process. The names of Redis channels start with `prefix`.
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
            let deliver = |(key, message)| u64::from(hub.deliver(&key, || Message::local::<T>(message)));
            return Ok(messages.into_iter().map(deliver).collect());
        };
        let encoded = messages.iter().map(|(key, message)| (key.channel(), encode::<T>(message))).collect();
        if T::REPEATABLE {
            // The subscribers of this process do not wait for Redis.
            for (key, message) in messages {
                hub.deliver(&key, || Message::local::<T>(message));
            }
        }
        link.publish(encoded).await
    }

    /// Subscribes to the topics `S` of a key. The subscription receives every message that is published after this returns, or a gap
    /// instead. Read the source of truth afterwards: it contains everything that was published before.
    pub async fn subscribe<S: Topics>(&self, key: S::Key) -> Subscription<S> {
        let hub = self.hub::<S::Key>();
        let (subscription, is_first) = Subscription::<S>::open(hub, key);
        if let Some(link) = self.0.link.as_ref().filter(|_| is_first || !subscription.is_connected())
            && link.subscribe(subscription.key().channel()).await
        {
            subscription.clear_gap();
        }
        subscription
    }

    /// Returns the keys with a subscriber in this process, each with the lowest [position](Subscription::set_position) of its
    /// subscribers.
    pub fn positions<K: Key>(&self) -> Vec<(K, i64)> {
        self.hub::<K>().positions()
    }

    /// Sends a gap to the subscribers of a key in this process.
    pub fn gap<K: Key>(&self, key: &K) {
        self.hub::<K>().gap(key);
    }

    /// Delivers messages from Redis to the subscribers of this process, until `drain` is requested.
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

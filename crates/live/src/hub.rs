//! The subscriptions of this process, by key.

use std::any::{Any, TypeId};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::redis::RedisLink;
use crate::topic::{Key, Message, Topics};

/// The most undelivered messages of a subscriber. Beyond that all are dropped and it receives a gap.
const MAX_QUEUED: usize = 64;

/// The hubs of all key types that are in use.
#[derive(Debug, Default)]
pub(crate) struct Hubs(Mutex<HashMap<TypeId, Arc<dyn Channels>>>);

/// The channels of one key type. Channels of other key types are ignored.
pub(crate) trait Channels: Any + fmt::Debug + Send + Sync {
    /// Delivers a payload to the subscribers of the channel.
    fn deliver(&self, channel: &str, payload: &[u8]);
    /// Returns whether the channel has a subscriber.
    fn is_open(&self, channel: &str) -> bool;
    /// Returns whether no channel has a subscriber.
    fn is_empty(&self) -> bool;
    /// Records that the channel is connected. Its subscribers receive a gap if it was not connected before.
    fn connected(&self, channel: &str);
    /// Records that all channels are disconnected. Returns the channels that have a subscriber.
    fn disconnected(&self) -> Box<dyn Iterator<Item = String> + Send>;
}

/// The subscriptions to keys of one type.
#[derive(Debug)]
pub(crate) struct Hub<K> {
    keys: Mutex<HashMap<K, Subscribers<K>>>,
    link: Option<Arc<RedisLink>>,
}

#[derive(Debug)]
struct Subscribers<K> {
    queues: Vec<Arc<SubscriberQueue<K>>>,
    /// Whether Redis delivers the messages of other processes.
    is_connected: bool,
}

/// The messages that a subscriber has not received yet.
#[derive(Debug)]
struct SubscriberQueue<K> {
    messages: Mutex<VecDeque<Message<K>>>,
    has_gap: AtomicBool,
    position: AtomicI64,
    arrived: Notify,
}

/// Receives the messages of one key. Ends when it is dropped.
pub struct Subscription<S: Topics> {
    hub: Arc<Hub<S::Key>>,
    key: S::Key,
    queue: Arc<SubscriberQueue<S::Key>>,
}

/// An event of a subscription.
#[derive(Clone, Debug, PartialEq)]
pub enum SubscriptionEvent<S> {
    Message(S),
    /// Messages may have been missed, or one was of an unknown topic: read the source of truth.
    Gap,
}

impl Hubs {
    fn all(&self) -> MutexGuard<'_, HashMap<TypeId, Arc<dyn Channels>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the hub of a key type.
    pub(crate) fn of<K: Key>(&self, link: Option<&Arc<RedisLink>>) -> Arc<Hub<K>> {
        let mut all = self.all();
        let known = all.get(&TypeId::of::<K>()).cloned();
        let known = known.and_then(|hub| (hub as Arc<dyn Any + Send + Sync>).downcast().ok());
        known.unwrap_or_else(|| {
            let hub = Arc::new(Hub { keys: Mutex::default(), link: link.cloned() });
            all.insert(TypeId::of::<K>(), hub.clone());
            hub
        })
    }

    pub(crate) fn deliver(&self, channel: &str, payload: &[u8]) {
        self.all().values().for_each(|hub| hub.deliver(channel, payload));
    }

    pub(crate) fn is_open(&self, channel: &str) -> bool {
        self.all().values().any(|hub| hub.is_open(channel))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all().values().all(|hub| hub.is_empty())
    }

    pub(crate) fn connected(&self, channels: &[String]) {
        let all = self.all();
        for channel in channels {
            all.values().for_each(|hub| hub.connected(channel));
        }
    }

    pub(crate) fn disconnected(&self) -> impl Iterator<Item = String> + Send + use<> {
        let channels: Vec<_> = self.all().values().map(|hub| hub.disconnected()).collect();
        channels.into_iter().flatten()
    }
}

impl<K: Key> Hub<K> {
    fn keys(&self) -> MutexGuard<'_, HashMap<K, Subscribers<K>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a subscriber. Also returns whether it is the first of its key.
    fn open(&self, key: &K) -> (Arc<SubscriberQueue<K>>, bool) {
        let queue = Arc::new(SubscriberQueue::default());
        let mut keys = self.keys();
        let subscribers = keys.entry(key.clone()).or_default();
        subscribers.queues.push(queue.clone());
        (queue, subscribers.queues.len() == 1)
    }

    /// Removes a subscriber. Unsubscribes from the key's channel if it was the last one.
    fn close(&self, key: &K, queue: &Arc<SubscriberQueue<K>>) {
        let mut keys = self.keys();
        let Some(subscribers) = keys.get_mut(key) else { return };
        subscribers.queues.retain(|known| !Arc::ptr_eq(known, queue));
        if subscribers.queues.is_empty() {
            keys.remove(key);
            drop(keys);
            if let Some(link) = &self.link {
                link.unsubscribe(key.channel());
            }
        }
    }

    /// Delivers a message to all subscribers of a key. Returns whether there are any.
    pub(crate) fn deliver(&self, key: &K, message: impl FnOnce() -> Message<K>) -> bool {
        let keys = self.keys();
        let Some(subscribers) = keys.get(key) else { return false };
        let message = message();
        subscribers.queues.iter().for_each(|queue| queue.push(message.clone()));
        true
    }

    pub(crate) fn gap(&self, key: &K) {
        if let Some(subscribers) = self.keys().get(key) {
            subscribers.queues.iter().for_each(|queue| queue.gap());
        }
    }

    pub(crate) fn positions(&self) -> Vec<(K, i64)> {
        let lowest = |subscribers: &Subscribers<K>| {
            let positions = subscribers.queues.iter().map(|queue| queue.position.load(Ordering::Relaxed));
            positions.min().unwrap_or_default()
        };
        self.keys().iter().map(|(key, subscribers)| (key.clone(), lowest(subscribers))).collect()
    }
}

impl<K: Key> Channels for Hub<K> {
    fn deliver(&self, channel: &str, payload: &[u8]) {
        if let Some(key) = K::from_channel(channel) {
            Self::deliver(self, &key, || Message::encoded(payload));
        }
    }

    fn is_open(&self, channel: &str) -> bool {
        K::from_channel(channel).is_some_and(|key| self.keys().contains_key(&key))
    }

    fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    fn connected(&self, channel: &str) {
        let Some(key) = K::from_channel(channel) else { return };
        if let Some(subscribers) = self.keys().get_mut(&key)
            && !subscribers.is_connected
        {
            subscribers.is_connected = true;
            subscribers.queues.iter().for_each(|queue| queue.gap());
        }
    }

    fn disconnected(&self) -> Box<dyn Iterator<Item = String> + Send> {
        let mut keys = self.keys();
        keys.values_mut().for_each(|subscribers| subscribers.is_connected = false);
        let open: Vec<K> = keys.keys().cloned().collect();
        Box::new(open.into_iter().map(|key| key.channel()))
    }
}

impl<K> Default for Subscribers<K> {
    fn default() -> Self {
        Self { queues: Vec::new(), is_connected: false }
    }
}

impl<K> Default for SubscriberQueue<K> {
    fn default() -> Self {
        Self {
            messages: Mutex::default(),
            has_gap: AtomicBool::new(false),
            position: AtomicI64::new(0),
            arrived: Notify::new(),
        }
    }
}

impl<K> SubscriberQueue<K> {
    fn messages(&self) -> MutexGuard<'_, VecDeque<Message<K>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: Message<K>) {
        let mut messages = self.messages();
        if self.has_gap.load(Ordering::Acquire) {
            // The subscriber is about to read the source of truth, which already contains this change.
        } else if messages.len() < MAX_QUEUED {
            messages.push_back(message);
        } else {
            *messages = VecDeque::new();
            self.has_gap.store(true, Ordering::Release);
        }
        drop(messages);
        self.arrived.notify_one();
    }

    fn gap(&self) {
        let mut messages = self.messages();
        // The source of truth already contains these changes. Delivered after it was read, the messages would be outdated.
        *messages = VecDeque::new();
        self.has_gap.store(true, Ordering::Release);
        drop(messages);
        self.arrived.notify_one();
    }
}

impl<S: Topics> Subscription<S> {
    /// Adds a subscription. Also returns whether it is the first of this process for the key.
    pub(crate) fn open(hub: Arc<Hub<S::Key>>, key: S::Key) -> (Self, bool) {
        let (queue, is_first) = hub.open(&key);
        (Self { hub, key, queue }, is_first)
    }

    /// Waits for the next message. Cancel safe.
    pub async fn next(&mut self) -> SubscriptionEvent<S> {
        loop {
            let message = {
                let mut messages = self.queue.messages();
                if self.queue.has_gap.swap(false, Ordering::AcqRel) {
                    return SubscriptionEvent::Gap;
                }
                let message = messages.pop_front();
                if messages.is_empty() {
                    // Frees the buffer of an idle subscription.
                    *messages = VecDeque::new();
                }
                message
            };
            if let Some(message) = message {
                return S::read(&message).map_or(SubscriptionEvent::Gap, SubscriptionEvent::Message);
            }
            self.queue.arrived.notified().await;
        }
    }

    /// Sets the subscriber's position in the source of truth, for [`Live::positions`](crate::Live::positions). It starts at 0.
    pub fn set_position(&self, position: i64) {
        self.queue.position.store(position, Ordering::Relaxed);
    }

    /// Clears a gap from before [`Live::subscribe`](crate::Live::subscribe) returns: the subscriber has read nothing yet, so it
    /// has missed nothing.
    pub(crate) fn clear_gap(&self) {
        self.queue.has_gap.store(false, Ordering::Release);
    }

    pub(crate) fn key(&self) -> &S::Key {
        &self.key
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.hub.keys().get(&self.key).is_some_and(|subscribers| subscribers.is_connected)
    }
}

impl<S: Topics> Drop for Subscription<S> {
    fn drop(&mut self) {
        self.hub.close(&self.key, &self.queue);
    }
}

impl<S: Topics> fmt::Debug for Subscription<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("key", &self.key).finish_non_exhaustive()
    }
}

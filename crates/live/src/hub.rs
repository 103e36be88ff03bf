//! The subscriptions of this process, by key.

use std::any::{Any, TypeId};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::redis::RedisLink;
use crate::topic::{Key, Message, Topics};

/// How many messages may wait for a subscriber. If there are more, all are dropped and it receives a gap.
const MAX_WAITING: usize = 64;

/// The hubs of all key types that are in use.
#[derive(Debug, Default)]
pub(crate) struct Hubs(Mutex<HashMap<TypeId, Arc<dyn Channels>>>);

/// The channels of one key type, whichever it is. A channel that belongs to another key type is left alone.
pub(crate) trait Channels: Any + fmt::Debug + Send + Sync {
    /// Delivers a payload to the subscribers of the channel.
    fn deliver(&self, channel: &str, payload: &[u8]);
    /// Returns whether the channel has a subscriber.
    fn is_open(&self, channel: &str) -> bool;
    /// Returns whether no channel has a subscriber.
    fn is_empty(&self) -> bool;
    /// Notes that the channel's messages arrive from now on. Its subscribers receive a gap if they did not arrive before.
    fn connected(&self, channel: &str);
    /// Notes that no messages arrive any more. Returns all channels that have a subscriber.
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
    slots: Vec<Arc<Slot<K>>>,
    /// Whether messages from other processes arrive.
    is_connected: bool,
}

#[derive(Debug)]
struct Slot<K> {
    waiting: Mutex<VecDeque<Message<K>>>,
    has_gap: AtomicBool,
    position: AtomicI64,
    arrived: Notify,
}

/// Receives the messages of one key. Ends when it is dropped.
pub struct Subscription<S: Topics> {
    hub: Arc<Hub<S::Key>>,
    key: S::Key,
    slot: Arc<Slot<S::Key>>,
}

/// What a subscriber receives.
#[derive(Clone, Debug, PartialEq)]
pub enum Received<S> {
    Message(S),
    /// Messages may have been missed, or one was not understood: read the source of truth.
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
    fn open(&self, key: &K) -> (Arc<Slot<K>>, bool) {
        let slot = Arc::new(Slot::default());
        let mut keys = self.keys();
        let subscribers = keys.entry(key.clone()).or_default();
        subscribers.slots.push(slot.clone());
        (slot, subscribers.slots.len() == 1)
    }

    /// Removes a subscriber. Unsubscribes from the key's channel if it was the last one.
    fn close(&self, key: &K, slot: &Arc<Slot<K>>) {
        let mut keys = self.keys();
        let Some(subscribers) = keys.get_mut(key) else { return };
        subscribers.slots.retain(|known| !Arc::ptr_eq(known, slot));
        if subscribers.slots.is_empty() {
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
        subscribers.slots.iter().for_each(|slot| slot.push(message.clone()));
        true
    }

    pub(crate) fn gap(&self, key: &K) {
        if let Some(subscribers) = self.keys().get(key) {
            subscribers.slots.iter().for_each(|slot| slot.gap());
        }
    }

    pub(crate) fn positions(&self) -> Vec<(K, i64)> {
        let lowest = |subscribers: &Subscribers<K>| {
            let positions = subscribers.slots.iter().map(|slot| slot.position.load(Ordering::Relaxed));
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
            subscribers.slots.iter().for_each(|slot| slot.gap());
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
        Self { slots: Vec::new(), is_connected: false }
    }
}

impl<K> Default for Slot<K> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            has_gap: AtomicBool::new(false),
            position: AtomicI64::new(0),
            arrived: Notify::new(),
        }
    }
}

impl<K> Slot<K> {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Message<K>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: Message<K>) {
        let mut waiting = self.waiting();
        if self.has_gap.load(Ordering::Acquire) {
            // The source of truth, which the subscriber is about to read, has this message too.
        } else if waiting.len() < MAX_WAITING {
            waiting.push_back(message);
        } else {
            *waiting = VecDeque::new();
            self.has_gap.store(true, Ordering::Release);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    fn gap(&self) {
        let mut waiting = self.waiting();
        // The source of truth has these messages too. Delivered after it was read, they would undo what it said.
        *waiting = VecDeque::new();
        self.has_gap.store(true, Ordering::Release);
        drop(waiting);
        self.arrived.notify_one();
    }
}

impl<S: Topics> Subscription<S> {
    /// Also returns whether it is the first subscription of this process to the key.
    pub(crate) fn open(hub: Arc<Hub<S::Key>>, key: S::Key) -> (Self, bool) {
        let (slot, is_first) = hub.open(&key);
        (Self { hub, key, slot }, is_first)
    }

    /// Waits for the next message. Cancel safe.
    pub async fn next(&mut self) -> Received<S> {
        loop {
            let message = {
                let mut waiting = self.slot.waiting();
                if self.slot.has_gap.swap(false, Ordering::AcqRel) {
                    return Received::Gap;
                }
                let message = waiting.pop_front();
                if waiting.is_empty() {
                    // An idle subscription holds no buffer.
                    *waiting = VecDeque::new();
                }
                message
            };
            if let Some(message) = message {
                return S::read(&message).map_or(Received::Gap, Received::Message);
            }
            self.slot.arrived.notified().await;
        }
    }

    /// Reports how far the subscriber is in the key's source of truth, for [`Live::positions`](crate::Live::positions). It starts
    /// at 0.
    pub fn set_position(&self, position: i64) {
        self.slot.position.store(position, Ordering::Relaxed);
    }

    /// Drops a gap from before [`Live::subscribe`](crate::Live::subscribe) returns: the subscriber has read nothing yet, so it
    /// has missed nothing.
    pub(crate) fn forget_gap(&self) {
        self.slot.has_gap.store(false, Ordering::Release);
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
        self.hub.close(&self.key, &self.slot);
    }
}

impl<S: Topics> fmt::Debug for Subscription<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("key", &self.key).finish_non_exhaustive()
    }
}

//! The embedded bus: a log in the memory of this process.
//!
//! It follows the rules of the stream. It stores events for `bus.max_age`. It stores an id once within the duplicate window, and while
//! the event is stored. It refuses events that are too large. It ends with the process, and the outbox restores the next one.
//!
//! It holds at most `bus.memory_events`. When it is full it discards the oldest events, if every consumer subscribed in this process has
//! acknowledged them or does not read them. Otherwise publishing fails transiently and the events wait in the outbox. Only subscribed
//! consumers count: in a process without the reading role nothing would ever be acknowledged. `bus.max_age` removes events whether or
//! not they were read, as on NATS.

mod consumer;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use self::consumer::MemoryConsumer;
use self::consumer::Shared;
use crate::publish_state::PublishState;
use crate::{Config, Error, Event, EventId, Reason};

/// The default of NATS, so that both accept the same events.
pub(crate) const MAX_SIZE: usize = 1 << 20;

/// The embedded bus. Cheap to clone; clones share the log.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    prefix: String,
    max_events: usize,
    max_age: Duration,
    duplicate_window: Duration,
    log: Mutex<Log>,
    /// The position of the newest event.
    last: watch::Sender<u64>,
    state: PublishState,
    /// The durable consumers by their names.
    consumers: Mutex<HashMap<String, Arc<Shared>>>,
}

/// Which events must not be discarded.
struct Unread {
    /// The first position that some consumer has not settled. None without consumers.
    from: Option<u64>,
    /// The name of that consumer.
    by: String,
    max_events: usize,
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<(Instant, StoredEvent)>,
    last: u64,
    /// The ids of the stored events, and of discarded ones within the duplicate window.
    ids: HashSet<EventId>,
    /// The ids of discarded events within the duplicate window, in the order of storing.
    discarded: VecDeque<(Instant, EventId)>,
}

/// An event in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Starts at 1. A gap after the requested position means that events were discarded unread.
    pub position: u64,
    /// With the prefix `bus.subjects`.
    pub subject: String,
    /// A CloudEvent in JSON, as NATS would deliver it.
    pub body: Bytes,
    id: EventId,
}

impl Memory {
    pub(crate) fn new(config: &Config) -> Self {
        Self(Arc::new(Inner {
            prefix: config.subjects.clone(),
            max_events: config.memory_events.try_into().unwrap_or(usize::MAX),
            max_age: config.max_age,
            duplicate_window: crate::stream::duplicate_window(config.max_age),
            log: Mutex::default(),
            last: watch::Sender::new(0),
            state: PublishState::new(config.timeout),
            consumers: Mutex::default(),
        }))
    }

    pub(crate) fn publish(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        let results = self.store(events, self.unread_from());
        self.0.state.record(&results);
        results
    }

    /// Stores events that were published before this process started, without a limit. They were acknowledged then, and may not have
    /// been read.
    pub fn restore(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        self.store(events, Unread { from: None, by: String::new(), max_events: usize::MAX })
    }

    fn store(&self, events: &[Event], unread: Unread) -> Vec<Result<(), Error>> {
        let inner = &*self.0;
        let now = Instant::now();
        let mut log = inner.lock();
        log.expire(inner, now);
        let results = events.iter().map(|event| log.store(inner, now, event, &unread)).collect();
        let last = log.last;
        drop(log);
        inner.last.send_if_modified(|known| std::mem::replace(known, last.max(*known)) < last);
        results
    }

    /// Returns the first position that some consumer has not settled. It can only advance while events are stored, so events before it
    /// are certainly settled.
    fn unread_from(&self) -> Unread {
        let consumers = self.0.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        let slowest = consumers.values().map(|consumer| (consumer.unread_from(), consumer.name())).min();
        Unread {
            from: slowest.map(|(from, _)| from),
            by: slowest.map(|(_, name)| name.to_owned()).unwrap_or_default(),
            max_events: self.0.max_events,
        }
    }

    pub(crate) fn state(&self) -> &PublishState {
        &self.0.state
    }

    /// Returns up to `max` events after a position, oldest first.
    pub fn read_after(&self, position: u64, max: usize) -> Vec<StoredEvent> {
        let mut log = self.0.lock();
        log.expire(&self.0, Instant::now());
        log.after(position).take(max).cloned().collect()
    }

    /// Returns the prefix of all subjects.
    pub(crate) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// Returns how many events the bus holds at most.
    pub fn capacity(&self) -> usize {
        self.0.max_events
    }

    /// Returns the position of the newest event, or 0 if there is none.
    pub fn last_position(&self) -> u64 {
        *self.0.last.borrow()
    }

    /// Waits for an event after the position.
    pub async fn changed(&self, position: u64) {
        // It fails only if the sender is dropped, and `self` holds it.
        let _ = self.0.last.subscribe().wait_for(|last| *last > position).await;
    }
}

impl Inner {
    /// Ignores poisoning: a panic leaves no partly stored event.
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn store(&mut self, inner: &Inner, now: Instant, event: &Event, unread: &Unread) -> Result<(), Error> {
        let subject = event.full_subject(&inner.prefix)?;
        let body = event.encode()?;
        if body.len() > MAX_SIZE {
            return Err(Error::TooLarge(format!("{} bytes; the bus accepts {MAX_SIZE}", body.len())));
        }
        if self.ids.contains(&event.id) {
            return Ok(());
        }
        while self.events.len() >= unread.max_events {
            let oldest = self.events.front().map(|(_, event)| event.position);
            if unread.from.is_some_and(|from| oldest.is_some_and(|oldest| oldest >= from)) {
                let said = format!(
                    "the embedded bus is full: the consumer {} has not acknowledged the oldest of {} events \
                     (bus.memory_events)",
                    unread.by,
                    self.events.len()
                );
                return Err(Error::Refusing { reason: Reason::Full, said });
            }
            self.discard_oldest();
        }
        self.ids.insert(event.id);
        self.last += 1;
        self.events.push_back((now, StoredEvent { position: self.last, subject, body, id: event.id }));
        Ok(())
    }

    /// Discards the oldest event and keeps its id.
    fn discard_oldest(&mut self) {
        if let Some((stored, event)) = self.events.pop_front() {
            self.discarded.push_back((stored, event.id));
        }
    }

    /// Iterates over the events after a position, oldest first.
    fn after(&self, position: u64) -> impl Iterator<Item = &StoredEvent> {
        let first = self.events.partition_point(|(_, event)| event.position <= position);
        self.events.range(first..).map(|(_, event)| event)
    }

    /// Returns the event at a position, or `None` if it is no longer stored.
    fn at(&self, position: u64) -> Option<&StoredEvent> {
        let found = self.events.binary_search_by_key(&position, |(_, event)| event.position).ok()?;
        self.events.get(found).map(|(_, event)| event)
    }

    /// Discards expired events and ids.
    fn expire(&mut self, inner: &Inner, now: Instant) {
        while self.events.front().is_some_and(|(stored, _)| now.duration_since(*stored) >= inner.max_age) {
            self.discard_oldest();
        }
        while let Some((stored, id)) = self.discarded.front().copied() {
            if now.duration_since(stored) < inner.duplicate_window {
                break;
            }
            self.ids.remove(&id);
            self.discarded.pop_front();
        }
    }
}

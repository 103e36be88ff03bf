//! The embedded bus: a log in this process.
//!
//! It keeps to the rules of the stream: what is published is kept for `bus.max_age`, an id is stored once within the
//! duplicate window and as long as the event is kept, and events that are too large are refused. It ends with the process; the outbox fills
//! the next one.
//!
//! It keeps at most `bus.memory_events`. When it is full, the oldest events make room if every consumer that has subscribed in this process
//! has acknowledged them or does not read them. Else publishing fails for now, and the outbox keeps the rest. A consumer that nobody has
//! subscribed does not count: without the role that reads, nothing would ever be acknowledged. `bus.max_age` removes events
//! whether they were read or not, as on NATS.

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

/// The default of NATS, so that what works here works there.
const MAX_SIZE: usize = 1 << 20;

/// The embedded bus. Clones share one log.
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

/// Which events have to be kept.
struct Unread {
    /// The first position that somebody has not read; none if nobody reads.
    from: Option<u64>,
    /// Who that is.
    by: String,
    max_events: usize,
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<(Instant, Stored)>,
    last: u64,
    /// The ids of what is kept, and of what was stored within the duplicate window: to be looked up.
    ids: HashSet<EventId>,
    /// The ids of events that are gone, in the order in which they were stored, until the window has passed.
    gone: VecDeque<(Instant, EventId)>,
}

/// An event as a reader finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Counts up from 1. A gap after the position that was asked for means that events were discarded unread.
    pub position: u64,
    /// With the prefix of all subjects.
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
        self.0.state.note(&results);
        results
    }

    /// Stores events that were published before this process started, however many they are: they were acknowledged then, and may
    /// not have been read.
    pub fn restore(&self, events: &[Event]) -> Vec<Result<(), Error>> {
        self.store(events, Unread { from: None, by: String::new(), max_events: usize::MAX })
    }

    fn store(&self, events: &[Event], unread: Unread) -> Vec<Result<(), Error>> {
        let inner = &*self.0;
        let now = Instant::now();
        let mut log = inner.lock();
        log.forget(inner, now);
        let results = events.iter().map(|event| log.store(inner, now, event, &unread)).collect();
        let last = log.last;
        drop(log);
        inner.last.send_if_modified(|known| std::mem::replace(known, last.max(*known)) < last);
        results
    }

    /// The first position that some consumer has not settled. It only moves on while the events are stored, so that what is
    /// judged by it is settled indeed.
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

    /// The events after a position, oldest first, at most `max` of them.
    pub fn read_after(&self, position: u64, max: usize) -> Vec<Stored> {
        let mut log = self.0.lock();
        log.forget(&self.0, Instant::now());
        log.after(position).take(max).cloned().collect()
    }

    /// What all subjects begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// How many events it keeps at most.
    pub fn capacity(&self) -> usize {
        self.0.max_events
    }

    /// The position of the newest event; 0 before the first.
    pub fn last_position(&self) -> u64 {
        *self.0.last.borrow()
    }

    /// Waits until there is an event after the position.
    pub async fn changed(&self, position: u64) {
        // It fails only when the sender is gone, which we hold.
        let _ = self.0.last.subscribe().wait_for(|last| *last > position).await;
    }
}

impl Inner {
    /// A panic while it was held left nothing half done that matters: each event is stored as a whole.
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn store(&mut self, inner: &Inner, now: Instant, event: &Event, unread: &Unread) -> Result<(), Error> {
        let subject = event.full_subject(&inner.prefix)?;
        let body = event.encode()?;
        if body.len() > MAX_SIZE {
            return Err(Error::TooLarge(format!("{} bytes, and the bus takes {MAX_SIZE}", body.len())));
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
            self.let_go_of_oldest();
        }
        self.ids.insert(event.id);
        self.last += 1;
        self.events.push_back((now, Stored { position: self.last, subject, body, id: event.id }));
        Ok(())
    }

    /// Its id is still remembered.
    fn let_go_of_oldest(&mut self) {
        if let Some((stored, event)) = self.events.pop_front() {
            self.gone.push_back((stored, event.id));
        }
    }

    /// The events after a position, oldest first.
    fn after(&self, position: u64) -> impl Iterator<Item = &Stored> {
        let first = self.events.partition_point(|(_, event)| event.position <= position);
        self.events.range(first..).map(|(_, event)| event)
    }

    /// The event at a position; `None` if it is no longer kept.
    fn at(&self, position: u64) -> Option<&Stored> {
        let found = self.events.binary_search_by_key(&position, |(_, event)| event.position).ok()?;
        self.events.get(found).map(|(_, event)| event)
    }

    /// Lets go of what is too old.
    fn forget(&mut self, inner: &Inner, now: Instant) {
        while self.events.front().is_some_and(|(stored, _)| now.duration_since(*stored) >= inner.max_age) {
            self.let_go_of_oldest();
        }
        while let Some((stored, id)) = self.gone.front().copied() {
            if now.duration_since(stored) < inner.duplicate_window {
                break;
            }
            self.ids.remove(&id);
            self.gone.pop_front();
        }
    }
}

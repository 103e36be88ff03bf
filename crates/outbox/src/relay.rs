//! From the outbox to the bus.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::error::chain;
use base::id::ProcessId;
use base::{Backoff, Timestamp};
use bus::{Bus, Event, EventId};
use runtime::lifecycle::{Drain, LoopError};
use work_queue::{Handler, Item, Keeper, Outcome, Part, Report, Worker};

use crate::{Outbox, event};

/// How many rows are read at once when an embedded bus is filled. A row holds up to some hundred events.
const FILLED_AT_ONCE: u32 = 200;

/// How many events are published at once.
const PUBLISHED_AT_ONCE: usize = 2_000;

/// What became of an event.
type Published = Result<(), bus::Error>;

/// Publishes what is in the outbox. Any number of relays do so at once. Clones are the same relay.
#[derive(Clone, Debug)]
pub struct Relay {
    outbox: Outbox,
    bus: Bus,
    worker: Arc<Worker<Publish>>,
}

#[derive(Debug)]
struct Publish {
    bus: Bus,
    /// The wait before an event is published again that the bus did not store while it stored others.
    retry: Backoff,
    /// How many batches in a row had such events.
    failures: AtomicU32,
}

impl Relay {
    pub fn new(id: ProcessId, outbox: Outbox, bus: Bus) -> Self {
        let queue = outbox.queue().clone();
        let publish = Publish { bus: bus.clone(), retry: queue.config().retry, failures: AtomicU32::new(0) };
        let worker = Worker::new(queue, publish, id);
        Self { outbox, bus, worker: Arc::new(worker) }
    }

    /// Publishes a batch.
    pub async fn tick(&self) -> Result<Report, LoopError> {
        self.worker.tick().await
    }

    /// Publishes until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.worker.run(drain).await
    }

    /// Removes rows that have been published for long enough, until told to stop.
    pub async fn keep(&self, drain: Drain) -> Result<(), LoopError> {
        Keeper::new(self.outbox.queue().clone()).run(drain).await
    }

    /// Fills an embedded bus, which is empty at start, with what the outbox has published and still keeps, the newest as many as the bus
    /// keeps: consumers that had not got to an event find it there. Returns how many events that were. A bus that is a server keeps its
    /// events by itself.
    pub async fn fill(&self) -> Result<usize, LoopError> {
        let Bus::Memory(memory) = &self.bus else { return Ok(0) };
        let (since, first) = self.newest(memory.capacity()).await?;
        let (mut last, mut filled) = (0, 0);
        loop {
            let rows = self.outbox.queue().done_after(last, since, FILLED_AT_ONCE).await?;
            let Some(end) = rows.last() else { return Ok(filled) };
            last = end.number;
            for row in rows.iter().filter(|row| (row.due, row.number) >= (since, first)) {
                let events = event::decode_all(row.id, &row.payload).unwrap_or_default();
                filled += events.len();
                memory.restore(&events);
            }
        }
    }

    /// The row that was published first of those that hold the newest `max` events: when, and its number.
    ///
    /// By the time of publishing, not by number: what was published last may have waited for long, and what is newest may still wait.
    async fn newest(&self, max: usize) -> Result<(Timestamp, i64), LoopError> {
        let (mut before, mut events) = (None, 0);
        loop {
            let rows = self.outbox.queue().done_before(before, FILLED_AT_ONCE).await?;
            let Some(last) = rows.last() else { return Ok((Timestamp::from_millis(0), 0)) };
            before = Some((last.due, last.number));
            for row in &rows {
                events += event::count(&row.payload);
                if events >= max {
                    return Ok((row.due, row.number));
                }
            }
        }
    }
}

impl Handler for Publish {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let mut events = Vec::with_capacity(items.len());
        let rows: Vec<Result<Range<usize>, String>> = items
            .iter()
            .map(|item| {
                let decoded = event::decode_all(item.id, &item.payload).map_err(|error| error.to_string())?;
                let first = events.len();
                events.extend(decoded);
                Ok(first..events.len())
            })
            .collect();
        let repeats = self.old_repeats(items.iter().zip(&rows), &events);
        let results = self.publish(&events, &repeats).await;
        let passing = self.passing(&results);
        let outcome = |row: Result<Range<usize>, String>| match row {
            Err(cause) => Outcome::Failed(cause),
            Ok(row) => outcome(&events[row.clone()], &results[row], passing),
        };
        rows.into_iter().map(outcome).collect()
    }
}

/// When events are published again that the bus did not store, through no fault of theirs. It never uses up their attempts.
#[derive(Clone, Copy, Debug)]
enum Passing {
    /// Nothing got through: the worker rests and tries with one event.
    Rest,
    /// Others of the batch got through.
    After(Duration),
}

impl Publish {
    /// Publishes events. Those that may have been published so long ago that the bus has forgotten their ids are looked for first.
    async fn publish(&self, events: &[Event], repeats: &[(Timestamp, &Event)]) -> Vec<Published> {
        if repeats.is_empty() {
            return self.publish_new(events).await;
        }
        let found = self.bus.find_stored(repeats).await;
        let repeats: HashSet<EventId> = repeats.iter().map(|(_, event)| event.id).collect();
        let known = |event: &Event| match &found {
            Ok(stored) => stored.contains(&event.id).then_some(Ok(())),
            Err(error) => repeats.contains(&event.id).then(|| Err(error.clone())),
        };
        let known: Vec<_> = events.iter().map(known).collect();
        let unknown = events.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<Event> = unknown.map(|(event, _)| event.clone()).collect();
        let mut published = self.publish_new(&unknown).await.into_iter();
        // As many as are unknown.
        known.into_iter().filter_map(|known| known.or_else(|| published.next())).collect()
    }

    /// Publishes so many events at once that the bus can take them within its timeout. While it takes none the rest is not tried.
    async fn publish_new(&self, events: &[Event]) -> Vec<Published> {
        let mut results: Vec<Published> = Vec::with_capacity(events.len());
        for some in events.chunks(PUBLISHED_AT_ONCE) {
            let published = self.bus.publish(some).await;
            debug_assert_eq!(published.len(), some.len(), "one result for each event");
            let refused = published.first().filter(|_| published.iter().all(is_passing)).cloned();
            results.extend(published);
            if let Some(refused) = refused {
                results.resize(events.len(), refused);
                break;
            }
        }
        results
    }

    /// Events of rows that were claimed before, and since when they may have been published.
    fn old_repeats<'a>(
        &self,
        rows: impl Iterator<Item = (&'a Item, &'a Result<Range<usize>, String>)>,
        events: &'a [Event],
    ) -> Vec<(Timestamp, &'a Event)> {
        let remembered = self.bus.remembers_for();
        rows.filter(|(item, _)| item.may_have_been_done(remembered))
            .filter_map(|(item, row)| Some((item.created, &events[row.clone().ok()?])))
            .flat_map(|(created, events)| events.iter().map(move |event| (created, event)))
            .collect()
    }

    fn passing(&self, results: &[Published]) -> Passing {
        if !results.iter().any(Result::is_ok) {
            return Passing::Rest;
        }
        let failures = if results.iter().any(is_passing) {
            self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1)
        } else {
            self.failures.store(0, Ordering::Relaxed);
            1
        };
        Passing::After(self.retry.after(failures))
    }
}

impl Passing {
    fn outcome(self, cause: String) -> Outcome {
        match self {
            Self::Rest => Outcome::NotTried(cause),
            Self::After(after) => Outcome::Later { after, cause },
        }
    }
}

/// What became of a row with these events.
fn outcome(events: &[Event], results: &[Published], passing: Passing) -> Outcome {
    let errors = || results.iter().filter_map(|result| result.as_ref().err());
    if let Some(hopeless) = errors().find(|error| error.is_hopeless()) {
        return match events {
            [_] => Outcome::Failed(chain(hopeless)),
            // Only the hopeless event is to fail. A stored event is not published again: the bus may have forgotten its id by then.
            _ => {
                let parts = events.iter().zip(results).map(|(event, result)| part(event, result.is_ok()));
                Outcome::Split(parts.collect())
            }
        };
    }
    errors().next().map_or(Outcome::Done, |error| passing.outcome(chain(error)))
}

/// An event of a batch row as a row of its own.
fn part(event: &Event, is_stored: bool) -> Part {
    Part {
        id: *event.id.as_uuid(),
        key: crate::key(event),
        payload: event::encode(event),
        is_done: is_stored,
    }
}

/// Whether the bus did not store an event that it may store later.
fn is_passing(result: &Published) -> bool {
    result.as_ref().is_err_and(|error| !error.is_hopeless())
}

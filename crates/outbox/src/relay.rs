//! From the outbox to the bus.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::error::chain;
use base::id::ProcessId;
use base::{Backoff, Timestamp};
use bus::{Bus, Event, EventId};
use runtime::lifecycle::{Drain, LoopError};
use work::{Handler, Item, Keeper, Outcome, Report, Worker};

use crate::{Outbox, event};

/// How many events are taken at once when an embedded bus is filled.
const FILLED_AT_ONCE: u32 = 1_000;

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
        let queue = self.outbox.queue();
        // By the time of publishing, not by number: what was published last may have waited for long, and what is newest may
        // still wait.
        let kept = i64::try_from(memory.capacity()).unwrap_or(i64::MAX);
        let since = queue.newest_done_since(kept).await?;
        let (mut last, mut filled) = (0, 0);
        loop {
            let rows = queue.done_after(last, since, FILLED_AT_ONCE).await?;
            let Some(end) = rows.last() else { return Ok(filled) };
            last = end.number;
            let events: Vec<Event> =
                rows.iter().filter_map(|row| event::decode(row.id, &row.payload).ok()).collect();
            filled += events.len();
            memory.restore(&events);
        }
    }
}

impl Handler for Publish {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let decoded: Vec<Result<Event, String>> = items
            .iter()
            .map(|item| event::decode(item.id, &item.payload).map_err(|error| error.to_string()))
            .collect();
        let events: Vec<Event> = decoded.iter().flatten().cloned().collect();
        let repeats = self.old_repeats(items.iter().zip(&decoded));
        let results = self.publish(&events, &repeats).await;
        let passing = self.passing(&results);
        let mut results = results.into_iter();
        let outcome = |decoded: Result<Event, String>| match decoded {
            Err(cause) => Outcome::Failed(cause),
            Ok(_) => match results.next() {
                Some(Ok(())) => Outcome::Done,
                Some(Err(error)) if error.is_hopeless() => Outcome::Failed(chain(&error)),
                Some(Err(error)) => passing.outcome(chain(&error)),
                None => passing.outcome("the bus did not report a result".to_owned()),
            },
        };
        decoded.into_iter().map(outcome).collect()
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
    async fn publish(
        &self,
        events: &[Event],
        repeats: &[(Timestamp, &Event)],
    ) -> Vec<Result<(), bus::Error>> {
        if repeats.is_empty() {
            return self.bus.publish(events).await;
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
        let mut published = self.bus.publish(&unknown).await.into_iter();
        // As many as are unknown.
        known.into_iter().filter_map(|known| known.or_else(|| published.next())).collect()
    }

    /// Events that were claimed before, and since when they may have been published.
    fn old_repeats<'a>(
        &self,
        items: impl Iterator<Item = (&'a Item, &'a Result<Event, String>)>,
    ) -> Vec<(Timestamp, &'a Event)> {
        let remembered = self.bus.remembers_for();
        items
            .filter(|(item, _)| item.may_have_been_done(remembered))
            .filter_map(|(item, decoded)| Some((item.created, decoded.as_ref().ok()?)))
            .collect()
    }

    fn passing(&self, results: &[Result<(), bus::Error>]) -> Passing {
        let is_passing = |result: &Result<(), bus::Error>| result.as_ref().is_err_and(|e| !e.is_hopeless());
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

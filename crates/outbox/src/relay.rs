//! The relay: publishes events from the outbox to the bus.

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
use work_queue::{Handler, Item, ItemOutcome, Report, RetentionCleaner, SplitItem, Worker};

use crate::{Outbox, event};

/// How many rows one query reads to restore an embedded bus. A row holds up to a few hundred events.
const RESTORE_BATCH: u32 = 200;

/// How many events are published together.
const PUBLISH_BATCH: usize = 2_000;

/// The result of publishing one event.
type PublishResult = Result<(), bus::Error>;

/// Publishes the events of the outbox. Any number of relays run concurrently. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Relay {
    outbox: Outbox,
    bus: Bus,
    worker: Arc<Worker<Publisher>>,
}

#[derive(Debug)]
struct Publisher {
    bus: Bus,
    /// The backoff for an event that the bus did not store while it stored others.
    retry: Backoff,
    /// How many consecutive batches had such events.
    failures: AtomicU32,
}

impl Relay {
    pub fn new(id: ProcessId, outbox: Outbox, bus: Bus) -> Self {
        let queue = outbox.queue().clone();
        let publisher =
            Publisher { bus: bus.clone(), retry: queue.config().retry, failures: AtomicU32::new(0) };
        let worker = Worker::new(queue, publisher, id);
        Self { outbox, bus, worker: Arc::new(worker) }
    }

    /// Publishes one batch.
    pub async fn tick(&self) -> Result<Report, LoopError> {
        self.worker.tick().await
    }

    /// Publishes until the drain is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.worker.run(drain).await
    }

    /// Removes published rows after their retention, until the drain is requested.
    pub async fn clean(&self, drain: Drain) -> Result<(), LoopError> {
        RetentionCleaner::new(self.outbox.queue().clone()).run(drain).await
    }

    /// Restores an embedded bus, which is empty at start, with the newest published events that the outbox still keeps, as many as the
    /// bus holds. Consumers then find the events they had not read. Returns how many events that were. Does nothing for NATS, which
    /// stores its events.
    pub async fn restore_bus(&self) -> Result<usize, LoopError> {
        let Bus::Memory(memory) = &self.bus else { return Ok(0) };
        let (since, first) = self.newest(memory.capacity()).await?;
        let (mut last, mut restored) = (0, 0);
        loop {
            let rows = self.outbox.queue().done_after(last, since, RESTORE_BATCH).await?;
            let Some(end) = rows.last() else { return Ok(restored) };
            last = end.number;
            for row in rows.iter().filter(|row| (row.due, row.number) >= (since, first)) {
                let events = event::decode_all(row.id, &row.payload).unwrap_or_default();
                restored += events.len();
                memory.restore(&events);
            }
        }
    }

    /// Returns the time and the number of the first published row among those that hold the newest `max` events.
    ///
    /// Orders by the time of publishing, not by number: the event published last may have waited long, and the newest may still wait.
    async fn newest(&self, max: usize) -> Result<(Timestamp, i64), LoopError> {
        let (mut before, mut events) = (None, 0);
        loop {
            let rows = self.outbox.queue().done_before(before, RESTORE_BATCH).await?;
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

impl Handler for Publisher {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
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
        let retry = self.transient_retry(&results);
        let outcome = |row: Result<Range<usize>, String>| match row {
            Err(cause) => ItemOutcome::Failed(cause),
            Ok(row) => outcome(&events[row.clone()], &results[row], retry),
        };
        rows.into_iter().map(outcome).collect()
    }
}

/// When to publish events again that the bus refused through no fault of theirs. Neither case uses up an attempt.
#[derive(Clone, Copy, Debug)]
enum TransientRetry {
    /// The bus stored nothing: the worker backs off and probes with one event.
    Probe,
    /// The bus stored other events of the batch.
    After(Duration),
}

impl Publisher {
    /// Publishes events. Looks first for those that may have been published so long ago that the bus no longer dedupes them.
    async fn publish(&self, events: &[Event], repeats: &[(Timestamp, &Event)]) -> Vec<PublishResult> {
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
        // One result for each unknown event.
        known.into_iter().filter_map(|known| known.or_else(|| published.next())).collect()
    }

    /// Publishes in batches that the bus can store within its timeout. Stops at the first batch of which it stores nothing.
    async fn publish_new(&self, events: &[Event]) -> Vec<PublishResult> {
        let mut results: Vec<PublishResult> = Vec::with_capacity(events.len());
        for batch in events.chunks(PUBLISH_BATCH) {
            let published = self.bus.publish(batch).await;
            debug_assert_eq!(published.len(), batch.len(), "one result for each event");
            let refused = published.first().filter(|_| published.iter().all(is_transient)).cloned();
            results.extend(published);
            if let Some(refused) = refused {
                results.resize(events.len(), refused);
                break;
            }
        }
        results
    }

    /// Returns events that may have been published before the dedupe period of the bus, and since when.
    fn old_repeats<'a>(
        &self,
        rows: impl Iterator<Item = (&'a Item, &'a Result<Range<usize>, String>)>,
        events: &'a [Event],
    ) -> Vec<(Timestamp, &'a Event)> {
        let dedupe_period = self.bus.dedupe_period();
        rows.filter(|(item, _)| item.attempt_may_be_older_than(dedupe_period))
            .filter_map(|(item, row)| Some((item.created, &events[row.clone().ok()?])))
            .flat_map(|(created, events)| events.iter().map(move |event| (created, event)))
            .collect()
    }

    fn transient_retry(&self, results: &[PublishResult]) -> TransientRetry {
        if !results.iter().any(Result::is_ok) {
            return TransientRetry::Probe;
        }
        let failures = if results.iter().any(is_transient) {
            self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1)
        } else {
            self.failures.store(0, Ordering::Relaxed);
            1
        };
        TransientRetry::After(self.retry.after(failures))
    }
}

impl TransientRetry {
    fn outcome(self, cause: String) -> ItemOutcome {
        match self {
            Self::Probe => ItemOutcome::NotAttempted(cause),
            Self::After(after) => ItemOutcome::Postponed { after, cause },
        }
    }
}

/// Returns the outcome of a row with these events.
fn outcome(events: &[Event], results: &[PublishResult], retry: TransientRetry) -> ItemOutcome {
    let errors = || results.iter().filter_map(|result| result.as_ref().err());
    if let Some(permanent) = errors().find(|error| error.is_permanent()) {
        return match events {
            [_] => ItemOutcome::Failed(chain(permanent)),
            // Only the event with the permanent error fails. Stored events become done rows, because the bus may have forgotten
            // their ids by the next attempt.
            _ => {
                let parts =
                    events.iter().zip(results).map(|(event, result)| split_item(event, result.is_ok()));
                ItemOutcome::Split(parts.collect())
            }
        };
    }
    errors().next().map_or(ItemOutcome::Done, |error| retry.outcome(chain(error)))
}

/// Turns one event of a batch row into a row of its own.
fn split_item(event: &Event, is_stored: bool) -> SplitItem {
    SplitItem {
        id: *event.id.as_uuid(),
        key: crate::key(event),
        payload: event::encode(event),
        is_done: is_stored,
    }
}

/// Returns whether the bus may store the event later.
fn is_transient(result: &PublishResult) -> bool {
    result.as_ref().is_err_and(|error| !error.is_permanent())
}

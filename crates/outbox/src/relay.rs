//! From the outbox to the bus.

use std::sync::Arc;

use base::error::{Coded, chain};
use base::id::ProcessId;
use bus::{Bus, Event};
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
}

impl Relay {
    pub fn new(id: ProcessId, outbox: Outbox, bus: Bus) -> Self {
        let worker = Worker::new(outbox.queue().clone(), Publish { bus: bus.clone() }, id);
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

    /// Fills an embedded bus, which is empty at start, with what the outbox has published and still keeps: readers that had
    /// not got to it find it there. Says how many events that were. A bus that is a server keeps its events by itself.
    pub async fn fill(&self) -> Result<usize, LoopError> {
        let Bus::Memory(memory) = &self.bus else { return Ok(0) };
        let queue = self.outbox.queue();
        let kept = i64::try_from(memory.capacity()).unwrap_or(i64::MAX);
        let mut last = queue.last_number().await?.saturating_sub(kept).max(0);
        let mut filled = 0;
        loop {
            let rows = queue.done_after(last, FILLED_AT_ONCE).await?;
            let Some(end) = rows.last() else { return Ok(filled) };
            last = end.number;
            let events: Vec<Event> =
                rows.iter().filter_map(|row| event::decode(row.id, &row.payload).ok()).collect();
            filled += events.len();
            self.bus.publish(&events).await;
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
        let results = self.bus.publish(&events).await;
        let nothing_got_through = results.iter().all(|result| matches!(result, Err(error) if is_away(error)));
        let mut results = results.into_iter();
        let outcome = |decoded: Result<Event, String>| match decoded {
            Err(cause) => Outcome::Failed(cause),
            Ok(_) => match results.next() {
                Some(Ok(())) => Outcome::Done,
                Some(Err(error)) if !is_away(&error) => Outcome::Failed(chain(&error)),
                // That is the bus, not the event.
                Some(Err(error)) if nothing_got_through => Outcome::NotTried(chain(&error)),
                Some(Err(error)) => Outcome::Again(chain(&error)),
                None => Outcome::Again("the bus did not say what came of it".to_owned()),
            },
        };
        decoded.into_iter().map(outcome).collect()
    }
}

/// Whether it is the bus that cannot take anything, for now or until an operator has seen to it; else it is the event.
fn is_away(error: &bus::Error) -> bool {
    error.is_passing() || !matches!(error, bus::Error::TooLarge(_) | bus::Error::Event(_))
}

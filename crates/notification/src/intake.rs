//! Intake: events from the bus become notifications in the inboxes.
//!
//! All processes share one durable consumer. One transaction records the ids of the events and adds their notifications, so an event that
//! arrives again is a duplicate. The events are acknowledged after the commit, with a confirmation. An event that cannot be interpreted
//! becomes a dead letter in the same transaction, with its bytes as they arrived, so it is not lost and blocks nothing. The bus never gives
//! up on an event; the intake does, after `notification.max_attempts` deliveries.
//!
//! **Order.** The consumer hands events to any process that fetches, so a process may have later events while another one still works on
//! earlier ones, or has died with them. Therefore the transaction also advances the position up to which the stream is taken in
//! (`notification_intake`), and fails if events between that position and its own are missing. The process then waits for the one that
//! has them. After [`GAP_TIMEOUT`] it reads them from the stream and takes them in itself. For a process that is late they are
//! duplicates.

mod arrived;

use std::collections::HashSet;
use std::time::Duration;

use base::Backoff;
use base::error::{Coded, chain};
use base::id::Uuid;
use bus::{Bus, Consumer, Delivery, Subscription, ack_all};
use runtime::fault;
use runtime::lifecycle::{Drain, LoopError};
use tokio::time::{Instant, sleep};

use self::arrived::{Arrived, batch_len};
use crate::dead_letters::DeadEvent;
use crate::service::{CreatedBatch, InterpretedEvent};
use crate::{Error, Notifications, dead_letters, store};

/// The consumer's name on the bus.
const CONSUMER: &str = "notifier";
/// How long an event may stay unacknowledged before the bus delivers it to another process.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// How long one fetch waits for events. A stop may have to wait this long.
const FETCH_WAIT: Duration = Duration::from_secs(1);
/// How many batches may be delivered and not yet acknowledged, in all processes together.
const BATCHES_PENDING: usize = 16;
/// How long a process waits for another one to take in the events before its own. A healthy process takes milliseconds.
const GAP_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it checks whether they are taken in.
const GAP_POLL: Duration = Duration::from_millis(5);
/// Retries while the store is unreachable.
const STORE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Takes in events from the bus. Any number of processes can do so at the same time.
#[derive(Clone, Debug)]
pub struct Intake {
    bus: Bus,
    notifications: Notifications,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntakeReport {
    /// How many events were fetched.
    pub events: usize,
    /// How many of those with recipients had been taken in before.
    pub duplicates: usize,
    /// How many notifications they created.
    pub notifications: usize,
    pub dead_letters: usize,
}

/// The result of a transaction.
enum Written {
    Committed(IntakeReport, CreatedBatch),
    /// Nothing was written: events after this position, and before those of the transaction, are not taken in yet.
    Gap {
        after: u64,
    },
}

impl Intake {
    pub fn new(bus: Bus, notifications: Notifications) -> Self {
        Self { bus, notifications }
    }

    /// Opens the consumer on the bus.
    pub async fn subscribe(&self) -> Result<Consumer, LoopError> {
        let subscription = Subscription {
            name: CONSUMER.to_owned(),
            subjects: None,
            ack_wait: ACK_WAIT,
            max_pending: self.batch() * BATCHES_PENDING,
        };
        let consumer = self.bus.subscribe(&subscription).await?;
        // The first process sets the start position; later ones find it.
        store::add_reader(&self.notifications.0.db, CONSUMER, consumer.ack_floor().await?).await?;
        Ok(consumer)
    }

    fn batch(&self) -> usize {
        self.notifications.0.config.batch as usize
    }

    /// Fetches and takes in a batch of events. Waits up to `wait` for the first one.
    pub async fn tick(&self, consumer: &Consumer, wait: Duration) -> Result<IntakeReport, LoopError> {
        let mut deliveries = consumer.fetch(self.batch(), wait).await?;
        // Redelivered events arrive out of order.
        deliveries.sort_unstable_by_key(|delivery| delivery.position);
        let arrived = deliveries.iter().map(|delivery| Arrived::from_delivery(delivery, &self.notifications));
        let events: Vec<Arrived> = arrived.collect();
        let mut total = IntakeReport::default();
        let mut rest = &events[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(batch_len(rest));
            let (report, created) = self.take_in(some).await?;
            self.finish(some, &report, &created).await;
            total.add(report);
            rest = others;
        }
        Ok(total)
    }

    /// Publishes committed notifications to the streams, then acknowledges the events.
    async fn finish(&self, events: &[Arrived], report: &IntakeReport, created: &CreatedBatch) {
        fault::point("notification_intake.committed");
        // The players first: an event that is not acknowledged is delivered again, and is a duplicate.
        let published = self.notifications.publish(created).await;
        let deliveries: Vec<Delivery> = events.iter().filter_map(|event| event.delivery.clone()).collect();
        futures::join!(acknowledge(&deliveries), self.notifications.settle(created, published));
        self.notifications.0.metrics.events(report);
    }

    /// Repeats [`tick`](Self::tick) until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let consumer = self.subscribe().await?;
        while !drain.is_requested() {
            self.tick(&consumer, FETCH_WAIT).await?;
        }
        // The embedded bus does not survive the process, so take in everything that is left.
        while matches!(self.bus, Bus::Memory(_)) && self.tick(&consumer, Duration::ZERO).await?.events > 0 {}
        Ok(())
    }

    /// Takes in consecutive events of the stream, once everything before them is taken in.
    async fn take_in(&self, events: &[Arrived]) -> Result<(IntakeReport, CreatedBatch), LoopError> {
        let first = events.first().map_or(0, |event| event.position);
        let mut expected = first.saturating_sub(1);
        let arrived = Instant::now();
        loop {
            match self.take_in_after(events, expected).await? {
                Written::Committed(report, created) => return Ok((report, created)),
                Written::Gap { .. } if arrived.elapsed() < GAP_TIMEOUT => sleep(GAP_POLL).await,
                Written::Gap { after } => expected = self.fill_gap(after, first).await?,
            }
        }
    }

    /// Takes in the events between two positions, which another process has fetched but does not take in. Returns the position up to
    /// which everything is taken in; the stream has nothing between it and `before`.
    async fn fill_gap(&self, after: u64, before: u64) -> Result<u64, LoopError> {
        let mut expected = after;
        loop {
            let missing = self.bus.read_between(expected, before, self.batch()).await?;
            if missing.is_empty() {
                return Ok(expected);
            }
            tracing::warn!(
                after = expected,
                events = missing.len(),
                "taking in events that another process has fetched and not taken in"
            );
            self.notifications.0.metrics.recovered(missing.len());
            let events: Vec<Arrived> =
                missing.into_iter().map(|event| Arrived::from_stream(event, &self.notifications)).collect();
            let mut rest = &events[..];
            while !rest.is_empty() {
                let (some, others) = rest.split_at(batch_len(rest));
                match self.take_in_after(some, expected).await? {
                    Written::Committed(report, created) => self.finish(some, &report, &created).await,
                    // Another process has started over with a new stream.
                    Written::Gap { after } => return Ok(after),
                }
                expected = some.last().map_or(expected, |event| event.position);
                rest = others;
            }
        }
    }

    /// Takes in the events in one transaction if everything up to `expected` is taken in. Retries while the store is unreachable.
    async fn take_in_after(&self, events: &[Arrived], expected: u64) -> Result<Written, LoopError> {
        let mut failures = 0;
        loop {
            let error = match self.take_in_together(events, expected).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            if !error.is_transient() {
                // One of them causes it, and the error does not say which.
                tracing::warn!(
                    cause = chain(&error),
                    events = events.len(),
                    "cannot take in a batch of events; taking them in one by one"
                );
                return self.take_in_one_by_one(events, expected).await;
            }
            failures += 1;
            tracing::warn!(
                outage = "sql",
                cause = chain(&error),
                events = events.len(),
                "cannot take in events; retrying"
            );
            sleep(STORE_BACKOFF.after(failures)).await;
            for delivery in events.iter().filter_map(|event| event.delivery.as_ref()) {
                // Keeps the bus from delivering them to another process, which would be harmless.
                let _ = delivery.in_progress().await;
            }
        }
    }

    async fn take_in_together(&self, events: &[Arrived], expected: u64) -> Result<Written, Error> {
        self.notifications.retrying(|| self.write(events, expected)).await
    }

    async fn take_in_one_by_one(&self, events: &[Arrived], mut expected: u64) -> Result<Written, LoopError> {
        let (mut total, mut all_created) = (IntakeReport::default(), CreatedBatch::default());
        for event in events {
            let written = match self.take_in_together(std::slice::from_ref(event), expected).await {
                Err(error) if !error.is_transient() => {
                    self.take_in_together(&[event.dead(chain(&error))], expected).await?
                }
                written => written?,
            };
            match written {
                Written::Committed(report, created) => {
                    total.add(report);
                    all_created.add(created);
                }
                gap @ Written::Gap { .. } => return Ok(gap),
            }
            expected = event.position;
        }
        Ok(Written::Committed(total, all_created))
    }

    /// Writes these events in one transaction, which begins and ends here. Writes nothing if events between `expected` and theirs are
    /// missing.
    async fn write(&self, events: &[Arrived], expected: u64) -> Result<Written, Error> {
        let notifications = &self.notifications;
        let interpreted: Vec<&InterpretedEvent> =
            events.iter().filter_map(|event| event.interpreted.as_ref().ok()).collect();
        let is_lost = |event: &InterpretedEvent| {
            !event.messages.is_empty() && fault::is_planted("notification_intake.lost")
        };
        let interpreted: Vec<&InterpretedEvent> =
            interpreted.into_iter().filter(|event| !is_lost(event)).collect();
        let batch = notifications.prepare_intake(&interpreted).await?;
        let (mut tx, new) = store::begin_intake(&notifications.0.db, &batch.ids()).await?;
        let taken_up_to = store::lock_reader(&mut tx, CONSUMER).await?;
        if let Some(after) = taken_up_to.filter(|position| *position < expected) {
            tx.rollback().await?;
            return Ok(Written::Gap { after });
        }
        let position = self.next_position(events, expected, taken_up_to.unwrap_or_default(), &new);
        let (created, duplicates) = notifications.create_for_events(&mut tx, &batch, new).await?;
        let dead: Vec<&DeadEvent> =
            events.iter().filter_map(|event| event.interpreted.as_ref().err()).collect();
        dead_letters::record_dead_events(&mut tx, &dead).await?;
        store::move_reader(&mut tx, CONSUMER, position);
        fault::point("notification_intake.uncommitted");
        tx.commit().await?;
        dead_letters::log_events(&dead);
        let report = IntakeReport {
            events: events.len(),
            duplicates,
            notifications: created.len(),
            dead_letters: dead.len(),
        };
        Ok(Written::Committed(report, created))
    }

    /// Returns the position up to which everything is taken in once these events are.
    fn next_position(&self, events: &[Arrived], expected: u64, taken_up_to: u64, new: &HashSet<Uuid>) -> u64 {
        let last = events.last().map_or(expected, |event| event.position);
        // A stream that was created anew counts from 1. Going back is safe: events that were taken in are duplicates.
        let is_new_stream = events.iter().any(|event| {
            event.position <= taken_up_to
                && event.interpreted.as_ref().is_ok_and(|event| new.contains(&event.event_id))
        });
        // Every start creates a new embedded bus.
        if is_new_stream && !matches!(self.bus, Bus::Memory(_)) {
            tracing::warn!(
                taken_up_to,
                last,
                "the stream has new events at positions that were taken in; it was probably deleted and created again"
            );
        }
        if is_new_stream { last } else { last.max(taken_up_to) }
    }
}

async fn acknowledge(deliveries: &[Delivery]) {
    let failed: Vec<bus::Error> = ack_all(deliveries).await.into_iter().filter_map(Result::err).collect();
    if let Some(error) = failed.first() {
        let cause = chain(error);
        tracing::warn!(
            outage = "bus",
            events = failed.len(),
            cause,
            "cannot acknowledge events; the bus will deliver them again, as duplicates"
        );
    }
}

impl IntakeReport {
    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.duplicates += other.duplicates;
        self.notifications += other.notifications;
        self.dead_letters += other.dead_letters;
    }
}

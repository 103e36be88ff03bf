//! From the bus to the inboxes.
//!
//! A durable consumer, shared by all processes that run this. What it is given is put into the inboxes in one transaction with the
//! ids of the events, so an event that comes again is known; it is acknowledged after the commit, with a confirmation. What cannot be
//! understood is a dead letter, in the same transaction, with its bytes as they came: nothing is lost and nothing is held up. The bus
//! itself never gives up on an event, so that deciding so is ours: after `notification.max_attempts` deliveries.
//!
//! **Order.** The consumer hands events to whichever process asks, so a process may have later events while another still works on
//! earlier ones, or has died with them. Therefore the transaction also moves the position in the stream up to which everything is taken
//! in (`notification_intake`), and fails if events between that position and its own are missing. The process then waits for the one
//! that has them, and after [`PATIENCE`] reads them from the stream and takes them in itself. A process that comes late finds them known.

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

use self::arrived::{Arrived, fitting};
use crate::dead::DeadEvent;
use crate::service::{Made, Understood};
use crate::{Error, Notifications, dead, store};

/// The consumer's name on the bus.
const CONSUMER: &str = "notifier";
/// After this time without a word an event is given to another process.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for an event before asking anew; so long a stop may have to wait.
const WAIT: Duration = Duration::from_secs(1);
/// How many batches may be delivered and not yet acknowledged, over all processes.
const BATCHES_PENDING: usize = 16;
/// How long a process waits for another one to take in the events before its own. Processes that live take milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks whether they are taken in.
const LOOK: Duration = Duration::from_millis(5);
/// While the store is away.
const AWAY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Takes events in. Any number of processes do so at once.
#[derive(Clone, Debug)]
pub struct Intake {
    bus: Bus,
    notifications: Notifications,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How many events there were.
    pub events: usize,
    /// How many of those that concern somebody had been taken in before.
    pub repeated: usize,
    /// How many notifications came of them.
    pub notifications: usize,
    pub dead: usize,
}

/// What came of a transaction.
enum Written {
    Taken(Taken, Made),
    /// Nothing was written: events behind this position, and before those that were to be taken in, are not taken in yet.
    Missing {
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
        // The first process to come says where to begin; later ones find the position.
        store::add_reader(&self.notifications.0.db, CONSUMER, consumer.floor().await?).await?;
        Ok(consumer)
    }

    fn batch(&self) -> usize {
        self.notifications.0.config.batch as usize
    }

    /// Takes in what there is, or what comes first within this time.
    pub async fn tick(&self, consumer: &Consumer, wait: Duration) -> Result<Taken, LoopError> {
        let mut deliveries = consumer.fetch(self.batch(), wait).await?;
        // Those that come again come out of order.
        deliveries.sort_unstable_by_key(|delivery| delivery.position);
        let arrived = deliveries.iter().map(|delivery| Arrived::delivered(delivery, &self.notifications));
        let events: Vec<Arrived> = arrived.collect();
        let mut all = Taken::default();
        let mut rest = &events[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(fitting(rest));
            let (taken, made) = self.take(some).await?;
            self.finish(some, &taken, &made).await;
            all.add(taken);
            rest = others;
        }
        Ok(all)
    }

    /// Tells the players of what is committed, then the bus.
    async fn finish(&self, events: &[Arrived], taken: &Taken, made: &Made) {
        fault::point("notification_intake.committed");
        // The player first: what is not acknowledged comes again, and is known.
        let published = self.notifications.publish(made).await;
        let answered: Vec<Delivery> = events.iter().filter_map(|event| event.delivery.clone()).collect();
        futures::join!(acknowledge(&answered), self.notifications.settle(made, published));
        self.notifications.0.metrics.taken(taken);
    }

    /// Takes in until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let consumer = self.subscribe().await?;
        while !drain.is_requested() {
            self.tick(&consumer, WAIT).await?;
        }
        // An embedded bus ends with the process.
        while matches!(self.bus, Bus::Memory(_)) && self.tick(&consumer, Duration::ZERO).await?.events > 0 {}
        Ok(())
    }

    /// Takes in events that follow each other in the stream, once everything before them is taken in.
    async fn take(&self, events: &[Arrived]) -> Result<(Taken, Made), LoopError> {
        let first = events.first().map_or(0, |event| event.position);
        let mut behind = first.saturating_sub(1);
        let arrived = Instant::now();
        loop {
            match self.take_behind(events, behind).await? {
                Written::Taken(taken, made) => return Ok((taken, made)),
                Written::Missing { .. } if arrived.elapsed() < PATIENCE => sleep(LOOK).await,
                Written::Missing { after } => behind = self.fill(after, first).await?,
            }
        }
    }

    /// Takes in the events between two positions, which another process has and does not take in. Returns the position up to which
    /// everything is taken in then: the stream has nothing between it and `before`.
    async fn fill(&self, after: u64, before: u64) -> Result<u64, LoopError> {
        let mut behind = after;
        loop {
            let kept = self.bus.read_between(behind, before, self.batch()).await?;
            if kept.is_empty() {
                return Ok(behind);
            }
            tracing::warn!(after = behind, events = kept.len(), "taking in events that another process has");
            self.notifications.0.metrics.filled(kept.len());
            let events: Vec<Arrived> =
                kept.into_iter().map(|kept| Arrived::kept(kept, &self.notifications)).collect();
            let mut rest = &events[..];
            while !rest.is_empty() {
                let (some, others) = rest.split_at(fitting(rest));
                match self.take_behind(some, behind).await? {
                    Written::Taken(taken, made) => self.finish(some, &taken, &made).await,
                    // Somebody has begun anew with another stream.
                    Written::Missing { after } => return Ok(after),
                }
                behind = some.last().map_or(behind, |event| event.position);
                rest = others;
            }
        }
    }

    /// All of them in one transaction, if everything up to `behind` is taken in; while the store is away, again and again.
    async fn take_behind(&self, events: &[Arrived], behind: u64) -> Result<Written, LoopError> {
        let mut failures = 0;
        loop {
            let error = match self.take_together(events, behind).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            if !error.is_passing() {
                // One of them, and nobody knows which.
                tracing::warn!(cause = chain(&error), events = events.len(), "taking events in one by one");
                return self.take_one_by_one(events, behind).await;
            }
            failures += 1;
            tracing::warn!(
                outage = "sql",
                cause = chain(&error),
                events = events.len(),
                "events cannot be taken in"
            );
            sleep(AWAY.after(failures)).await;
            for delivery in events.iter().filter_map(|event| event.delivery.as_ref()) {
                // Or they would be given to others meanwhile, which would do no harm.
                let _ = delivery.in_progress().await;
            }
        }
    }

    async fn take_together(&self, events: &[Arrived], behind: u64) -> Result<Written, Error> {
        self.notifications.retrying(|| self.write(events, behind)).await
    }

    async fn take_one_by_one(&self, events: &[Arrived], mut behind: u64) -> Result<Written, LoopError> {
        let (mut all_taken, mut all_made) = (Taken::default(), Made::default());
        for event in events {
            let written = match self.take_together(std::slice::from_ref(event), behind).await {
                Err(error) if !error.is_passing() => {
                    self.take_together(&[event.dead(chain(&error))], behind).await?
                }
                written => written?,
            };
            match written {
                Written::Taken(taken, made) => {
                    all_taken.add(taken);
                    all_made.add(made);
                }
                missing @ Written::Missing { .. } => return Ok(missing),
            }
            behind = event.position;
        }
        Ok(Written::Taken(all_taken, all_made))
    }

    /// Writes all that comes of these events in one transaction, which begins and ends here. Writes nothing if events between `behind` and
    /// theirs are missing.
    async fn write(&self, events: &[Arrived], behind: u64) -> Result<Written, Error> {
        let notifications = &self.notifications;
        let understood: Vec<&Understood> =
            events.iter().filter_map(|event| event.read.as_ref().ok()).collect();
        let incoming = notifications.incoming(&understood).await?;
        let (mut tx, new) = store::begin_intake(&notifications.0.db, &incoming.ids()).await?;
        let taken_up_to = store::lock_reader(&mut tx, CONSUMER).await?;
        if let Some(after) = taken_up_to.filter(|position| *position < behind) {
            tx.rollback().await?;
            return Ok(Written::Missing { after });
        }
        let position = self.next_position(events, behind, taken_up_to.unwrap_or_default(), &new);
        let (made, repeated) = notifications.make_of(&mut tx, &incoming, new).await?;
        let dead: Vec<&DeadEvent> = events.iter().filter_map(|event| event.read.as_ref().err()).collect();
        dead::bury_events(&mut tx, &dead).await?;
        store::move_reader(&mut tx, CONSUMER, position);
        fault::point("notification_intake.uncommitted");
        tx.commit().await?;
        dead::log_events(&dead);
        let dead = dead.len();
        let taken = Taken { events: events.len(), repeated, notifications: made.len(), dead };
        Ok(Written::Taken(taken, made))
    }

    /// Returns the position up to which everything is taken in once these events are.
    fn next_position(&self, events: &[Arrived], behind: u64, taken_up_to: u64, new: &HashSet<Uuid>) -> u64 {
        let last = events.last().map_or(behind, |event| event.position);
        // A stream that was made anew counts from 1. To go back is safe: whatever was taken in is known.
        let is_anew = events.iter().any(|event| {
            event.position <= taken_up_to && event.read.as_ref().is_ok_and(|read| new.contains(&read.event))
        });
        // An embedded bus is made anew by every start.
        if is_anew && !matches!(self.bus, Bus::Memory(_)) {
            tracing::warn!(taken_up_to, last, "events are new that stand where everything was taken in");
        }
        if is_anew { last } else { last.max(taken_up_to) }
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
            "not acknowledged: they come again, and are known"
        );
    }
}

impl Taken {
    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.repeated += other.repeated;
        self.notifications += other.notifications;
        self.dead += other.dead;
    }
}

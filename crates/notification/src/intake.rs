//! From the bus to the inboxes.
//!
//! A durable consumer, shared by all processes that run this. What it is given is put into the inboxes in one transaction with the
//! ids of the events, so an event that comes again is known; it is acknowledged after the commit, with a confirmation. What cannot be
//! understood is a dead letter, in the same transaction, with its bytes as they came: nothing is lost and nothing is held up. The bus
//! itself never gives up on an event, so that deciding so is ours: after `notification.max_attempts` deliveries.

use std::time::Duration;

use base::Backoff;
use base::error::{Coded, chain};
use bus::{Bus, Consumer, Delivery, Subscription, ack_all};
use runtime::fault;
use runtime::lifecycle::{Drain, LoopError};
use tokio::time::sleep;

use crate::dead::DeadEvent;
use crate::service::{Made, Understood};
use crate::{Error, Notifications, dead};

/// The consumer's name on the bus.
const CONSUMER: &str = "notifier";
/// After this time without a word an event is given to another process.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for an event before asking anew; so long a stop may have to wait.
const WAIT: Duration = Duration::from_secs(1);
/// How many batches may be delivered and not yet acknowledged, over all processes.
const BATCHES_PENDING: usize = 16;
/// About how many bytes one transaction may write, and how many a row has beside what the event says.
const TRANSACTION: usize = 4 << 20;
const ROW: usize = 1_000;
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

/// An event that came, and what was understood of it.
struct Came<'a> {
    delivery: &'a Delivery,
    read: Result<Understood, DeadEvent>,
}

impl Intake {
    pub fn new(bus: Bus, notifications: Notifications) -> Self {
        Self { bus, notifications }
    }

    /// The consumer on the bus.
    pub async fn subscribe(&self) -> Result<Consumer, bus::Error> {
        let subscription = Subscription {
            name: CONSUMER.to_owned(),
            subjects: None,
            ack_wait: ACK_WAIT,
            max_pending: self.batch() * BATCHES_PENDING,
        };
        self.bus.subscribe(&subscription).await
    }

    fn batch(&self) -> usize {
        self.notifications.0.config.batch as usize
    }

    /// Takes in what there is, or what comes first within this time.
    pub async fn tick(&self, consumer: &Consumer, wait: Duration) -> Result<Taken, LoopError> {
        let deliveries = consumer.fetch(self.batch(), wait).await?;
        if deliveries.is_empty() {
            return Ok(Taken::default());
        }
        let mut all = Taken::default();
        let events: Vec<Came<'_>> = deliveries.iter().map(|delivery| self.read(delivery)).collect();
        let mut rest = &events[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(fitting(rest));
            let (taken, made) = self.take(some).await?;
            fault::point("notification_intake.committed");
            // The player first: what is not acknowledged comes again, and is known.
            let told = self.notifications.tell(&made).await;
            let answered: Vec<Delivery> = some.iter().map(|event| event.delivery.clone()).collect();
            futures::join!(acknowledge(&answered), self.notifications.settle(&made, told));
            self.notifications.0.metrics.taken(&taken);
            all.add(taken);
            rest = others;
        }
        Ok(all)
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

    /// All of them in one transaction; while the store is away, again and again.
    async fn take(&self, events: &[Came<'_>]) -> Result<(Taken, Made), LoopError> {
        let mut failures = 0;
        loop {
            let error = match self.take_together(events).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !error.is_passing() {
                // One of them, and nobody knows which.
                tracing::warn!(cause = chain(&error), events = events.len(), "taking events in one by one");
                return self.take_one_by_one(events).await;
            }
            failures += 1;
            tracing::warn!(cause = chain(&error), events = events.len(), "events cannot be taken in");
            sleep(AWAY.after(failures)).await;
            for event in events {
                // Or they would be given to others meanwhile, which would do no harm.
                let _ = event.delivery.in_progress().await;
            }
        }
    }

    async fn take_together(&self, events: &[Came<'_>]) -> Result<(Taken, Made), Error> {
        self.notifications.retrying(|| self.write(events)).await
    }

    async fn take_one_by_one(&self, events: &[Came<'_>]) -> Result<(Taken, Made), LoopError> {
        let (mut all_taken, mut all_made) = (Taken::default(), Made::default());
        for event in events {
            let (taken, made) = match self.take_together(std::slice::from_ref(event)).await {
                Err(error) if !error.is_passing() => {
                    let Came { delivery, .. } = event;
                    let read = Err(DeadEvent::new(delivery, chain(&error)));
                    self.take_together(&[Came { delivery, read }]).await?
                }
                done => done?,
            };
            all_taken.add(taken);
            all_made.add(made);
        }
        Ok((all_taken, all_made))
    }

    fn read<'a>(&self, delivery: &'a Delivery) -> Came<'a> {
        Came { delivery, read: self.understand(delivery) }
    }

    fn understand(&self, delivery: &Delivery) -> Result<Understood, DeadEvent> {
        if delivery.attempt > self.notifications.0.config.max_attempts.into() {
            let cause = format!("it was delivered {} times and never taken in", delivery.attempt);
            return Err(DeadEvent::new(delivery, cause));
        }
        let understood = self.notifications.understand(&delivery.subject, &delivery.body);
        understood.map_err(|cause| DeadEvent::new(delivery, cause))
    }

    async fn write(&self, events: &[Came<'_>]) -> Result<(Taken, Made), Error> {
        let understood: Vec<&Understood> =
            events.iter().filter_map(|event| event.read.as_ref().ok()).collect();
        let (mut tx, made, repeated) = self.notifications.begin_taking_in(&understood).await?;
        let dead: Vec<&DeadEvent> = events.iter().filter_map(|event| event.read.as_ref().err()).collect();
        dead::bury_events(&mut tx, &dead).await?;
        fault::point("notification_intake.uncommitted");
        tx.commit().await?;
        let dead = dead.len();
        Ok((Taken { events: events.len(), repeated, notifications: made.len(), dead }, made))
    }
}

/// How many of these are taken in with one transaction; at least one. What takes the store longer than it may would be tried again
/// and again, with all the others.
fn fitting(events: &[Came<'_>]) -> usize {
    let mut size = 0;
    let fits = |event: &&Came<'_>| {
        let told = event.read.as_ref().map_or(1, |understood| understood.told.len().max(1));
        size += told * (event.delivery.body.len() + ROW);
        size <= TRANSACTION
    };
    events.iter().take_while(fits).count().max(1)
}

async fn acknowledge(deliveries: &[Delivery]) {
    let failed: Vec<bus::Error> = ack_all(deliveries).await.into_iter().filter_map(Result::err).collect();
    if let Some(error) = failed.first() {
        let cause = chain(error);
        tracing::warn!(events = failed.len(), cause, "not acknowledged: they come again, and are known");
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

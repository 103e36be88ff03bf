//! Durable consumers of the embedded bus. Like the log, their progress ends with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{Log, Memory, StoredEvent};
use crate::consume::{Origin, Response};
use crate::read::strip_prefix;
use crate::{Delivery, Error, Subscription};

/// A durable consumer in this process. Consumers of the same name share their progress.
#[derive(Clone, Debug)]
pub(crate) struct MemoryConsumer {
    memory: Memory,
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    name: String,
    progress: Mutex<Progress>,
    /// Notified after a response, because more events may be deliverable.
    responded: Notify,
}

#[derive(Debug)]
struct Progress {
    subscription: Subscription,
    /// The position up to which every event was delivered at least once, or does not match.
    passed: u64,
    /// Delivered events that are not acknowledged, by position.
    pending: BTreeMap<u64, Pending>,
    /// The same events in the order of their next delivery.
    due: BTreeSet<(Instant, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    attempt: u64,
    due: Instant,
}

impl Memory {
    pub(crate) fn subscribe(&self, subscription: &Subscription) -> Result<MemoryConsumer, Error> {
        let mut consumers = self.0.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = consumers.entry(subscription.name.clone());
        let shared = Arc::clone(known.or_insert_with(|| Arc::new(Shared::new(subscription))));
        drop(consumers);
        shared.update(subscription)?;
        Ok(MemoryConsumer { memory: self.clone(), shared })
    }
}

impl MemoryConsumer {
    pub(crate) fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the position up to which everything is acknowledged.
    pub(crate) fn ack_floor(&self) -> u64 {
        let progress = self.shared.lock();
        progress.pending.first_key_value().map_or(progress.passed, |(position, _)| position - 1)
    }

    pub(crate) async fn fetch(&self, max: usize, wait: Duration) -> Vec<Delivery> {
        let deadline = Instant::now() + wait;
        let mut published = self.memory.0.last.subscribe();
        loop {
            // Both before the check, so that any later change ends the wait.
            published.mark_unchanged();
            let responded = self.shared.responded.notified();
            let (taken, next) = self.take(max);
            if !taken.is_empty() || Instant::now() >= deadline {
                return taken;
            }
            let until = next.map_or(deadline, |next| next.min(deadline));
            tokio::select! {
                _ = published.changed() => {}
                () = responded => {}
                () = sleep_until(until) => {}
            }
        }
    }

    pub(crate) fn respond(&self, position: u64, response: Response) {
        let now = Instant::now();
        let mut progress = self.shared.lock();
        match response {
            Response::Done | Response::GivenUp => progress.settle(position),
            Response::RedeliverAfter(after) => progress.postpone(position, now + after),
            Response::InProgress => {
                let due = now + progress.subscription.ack_wait;
                progress.postpone(position, due);
            }
        }
        drop(progress);
        self.shared.responded.notify_waiters();
    }

    /// Returns the events to deliver now, and the time of the next redelivery.
    fn take(&self, max: usize) -> (Vec<Delivery>, Option<Instant>) {
        let now = Instant::now();
        // Always lock in this order, to avoid a deadlock.
        let mut progress = self.shared.lock();
        let mut log = self.memory.0.lock();
        log.expire(&self.memory.0, now);
        let taken = progress.take(&log, &self.memory.0.prefix, max, now);
        let next = progress.due.first().map(|(due, _)| *due);
        let deliver = |(event, attempt): (StoredEvent, u64)| Delivery {
            position: event.position,
            attempt,
            subject: strip_prefix(&event.subject, &self.memory.0.prefix).to_owned(),
            body: event.body,
            origin: Origin::Memory(self.clone()),
        };
        (taken.into_iter().map(deliver).collect(), next)
    }
}

impl Shared {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The first position that is not settled: acknowledged, given up, or not for this consumer.
    pub(super) fn unread_from(&self) -> u64 {
        let progress = self.lock();
        progress.pending.keys().next().copied().unwrap_or(progress.passed + 1)
    }

    fn new(subscription: &Subscription) -> Self {
        let progress = Progress {
            subscription: subscription.clone(),
            passed: 0,
            pending: BTreeMap::new(),
            due: BTreeSet::new(),
        };
        Self { name: subscription.name.clone(), progress: Mutex::new(progress), responded: Notify::new() }
    }

    fn update(&self, subscription: &Subscription) -> Result<(), Error> {
        let mut progress = self.lock();
        let (existing, requested) = (&progress.subscription.subjects, &subscription.subjects);
        if existing != requested {
            let named = |subjects: &Option<String>| subjects.clone().unwrap_or_else(|| ">".to_owned());
            return Err(subscription.subjects_differ(&named(existing), &named(requested)));
        }
        progress.subscription = subscription.clone();
        drop(progress);
        // A higher `max_pending` may allow more deliveries.
        self.responded.notify_waiters();
        Ok(())
    }

    /// Ignores poisoning: at worst a panic causes one more delivery of an event.
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Returns events due for redelivery, then new events, each with its attempt. Skips events that do not match.
    fn take(&mut self, log: &Log, prefix: &str, max: usize, now: Instant) -> Vec<(StoredEvent, u64)> {
        // Events that the log has discarded are not delivered again and do not count as pending.
        while let Some((&position, _)) = self.pending.first_key_value()
            && log.at(position).is_none()
        {
            self.settle(position);
        }
        let mut taken = Vec::new();
        while let Some(&(due, position)) = self.due.first()
            && due <= now
            && taken.len() < max
        {
            let attempt = self.deliver(position, now);
            taken.extend(log.at(position).map(|event| (event.clone(), attempt)));
        }
        for event in log.after(self.passed) {
            if taken.len() >= max || self.pending.len() >= self.subscription.max_pending {
                break;
            }
            self.passed = event.position;
            if self.subscription.matches(strip_prefix(&event.subject, prefix)) {
                taken.push((event.clone(), self.deliver(event.position, now)));
            }
        }
        taken
    }

    /// Records one more delivery and returns its attempt.
    fn deliver(&mut self, position: u64, now: Instant) -> u64 {
        let attempt = self.pending.get(&position).map_or(0, |pending| pending.attempt) + 1;
        self.settle(position);
        let due = now + self.subscription.ack_wait;
        self.pending.insert(position, Pending { attempt, due });
        self.due.insert((due, position));
        attempt
    }

    /// Ends deliveries of an event.
    fn settle(&mut self, position: u64) {
        if let Some(pending) = self.pending.remove(&position) {
            self.due.remove(&(pending.due, position));
        }
    }

    /// Changes the time of the next delivery, unless the event is settled.
    fn postpone(&mut self, position: u64, due: Instant) {
        if let Some(pending) = self.pending.get_mut(&position) {
            let before = std::mem::replace(&mut pending.due, due);
            self.due.remove(&(before, position));
            self.due.insert((due, position));
        }
    }
}

//! Durable consumers of the embedded bus. Their progress ends with the process, as the log does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{Log, Memory, Stored};
use crate::consume::{Answer, Origin};
use crate::read::below;
use crate::{Delivery, Error, Subscription};

/// A durable consumer in this process. All of a name share one progress.
#[derive(Clone, Debug)]
pub(crate) struct MemoryConsumer {
    memory: Memory,
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    name: String,
    progress: Mutex<Progress>,
    /// Something was answered, so that there may be more to deliver.
    answered: Notify,
}

#[derive(Debug)]
struct Progress {
    subscription: Subscription,
    /// Up to here everything has been delivered at least once, or is not for this consumer.
    passed: u64,
    /// What is delivered and not acknowledged, by its position.
    pending: BTreeMap<u64, Pending>,
    /// The same in the order in which it is to be delivered again.
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

    /// The position up to which everything is acknowledged.
    pub(crate) fn floor(&self) -> u64 {
        let progress = self.shared.lock();
        progress.pending.first_key_value().map_or(progress.passed, |(position, _)| position - 1)
    }

    pub(crate) async fn fetch(&self, max: usize, wait: Duration) -> Vec<Delivery> {
        let deadline = Instant::now() + wait;
        let mut news = self.memory.0.last.subscribe();
        loop {
            // Both before the look, so that whatever happens after it ends the wait.
            news.mark_unchanged();
            let answered = self.shared.answered.notified();
            let (taken, next) = self.take(max);
            if !taken.is_empty() || Instant::now() >= deadline {
                return taken;
            }
            let until = next.map_or(deadline, |next| next.min(deadline));
            tokio::select! {
                _ = news.changed() => {}
                () = answered => {}
                () = sleep_until(until) => {}
            }
        }
    }

    pub(crate) fn answer(&self, position: u64, answer: Answer) {
        let now = Instant::now();
        let mut progress = self.shared.lock();
        match answer {
            Answer::Done | Answer::GivenUp => progress.settle(position),
            Answer::Again(after) => progress.postpone(position, now + after),
            Answer::InProgress => {
                let due = now + progress.subscription.ack_wait;
                progress.postpone(position, due);
            }
        }
        drop(progress);
        self.shared.answered.notify_waiters();
    }

    /// What there is to deliver now, and when something is to be delivered again.
    fn take(&self, max: usize) -> (Vec<Delivery>, Option<Instant>) {
        let now = Instant::now();
        // Always in this order. Nobody holds the log and asks for a progress.
        let mut progress = self.shared.lock();
        let mut log = self.memory.0.lock();
        log.forget(&self.memory.0, now);
        let taken = progress.take(&log, &self.memory.0.prefix, max, now);
        let next = progress.due.first().map(|(due, _)| *due);
        let deliver = |(event, attempt): (Stored, u64)| Delivery {
            position: event.position,
            attempt,
            subject: below(&event.subject, &self.memory.0.prefix).to_owned(),
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
        Self { name: subscription.name.clone(), progress: Mutex::new(progress), answered: Notify::new() }
    }

    fn update(&self, subscription: &Subscription) -> Result<(), Error> {
        let mut progress = self.lock();
        let (theirs, ours) = (&progress.subscription.subjects, &subscription.subjects);
        if theirs != ours {
            let named = |subjects: &Option<String>| subjects.clone().unwrap_or_else(|| ">".to_owned());
            return Err(subscription.reads_others(&named(theirs), &named(ours)));
        }
        progress.subscription = subscription.clone();
        drop(progress);
        // There may be room for more now.
        self.answered.notify_waiters();
        Ok(())
    }

    /// A panic while it was held may at worst have an event delivered once more.
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// What is due again, then what is new, each with its attempt.
    ///
    /// Events that are not for this consumer are passed with the next that is looked at.
    fn take(&mut self, log: &Log, prefix: &str, max: usize, now: Instant) -> Vec<(Stored, u64)> {
        // What the log has let go of is delivered no more, and takes up no place.
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
            if self.subscription.wants(below(&event.subject, prefix)) {
                taken.push((event.clone(), self.deliver(event.position, now)));
            }
        }
        taken
    }

    /// Notes one more delivery, and returns which it is.
    fn deliver(&mut self, position: u64, now: Instant) -> u64 {
        let attempt = self.pending.get(&position).map_or(0, |pending| pending.attempt) + 1;
        self.settle(position);
        let due = now + self.subscription.ack_wait;
        self.pending.insert(position, Pending { attempt, due });
        self.due.insert((due, position));
        attempt
    }

    /// It is not delivered again.
    fn settle(&mut self, position: u64) {
        if let Some(pending) = self.pending.remove(&position) {
            self.due.remove(&(pending.due, position));
        }
    }

    /// Changes when it is delivered again, unless that is settled.
    fn postpone(&mut self, position: u64, due: Instant) {
        if let Some(pending) = self.pending.get_mut(&position) {
            let before = std::mem::replace(&mut pending.due, due);
            self.due.remove(&(before, position));
            self.due.insert((due, position));
        }
    }
}

//! Events on their way in.

use bus::{Delivery, Kept};
use bytes::Bytes;

use crate::Notifications;
use crate::dead::DeadEvent;
use crate::service::Understood;

/// About how many bytes one transaction may write, and how many a row has beside what the event says.
const TRANSACTION: usize = 4 << 20;
const ROW: usize = 1_000;

/// An event that arrived, and what was understood of it.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) position: u64,
    subject: String,
    body: Bytes,
    attempt: u64,
    /// To be acknowledged; absent from an event that was read from the stream.
    pub(super) delivery: Option<Delivery>,
    pub(super) read: Result<Understood, DeadEvent>,
}

impl Arrived {
    pub(super) fn delivered(delivery: &Delivery, notifications: &Notifications) -> Self {
        let Delivery { position, attempt, .. } = *delivery;
        let (subject, body) = (delivery.subject.clone(), delivery.body.clone());
        Self::read(notifications, position, attempt, subject, body, Some(delivery.clone()))
    }

    pub(super) fn kept(kept: Kept, notifications: &Notifications) -> Self {
        Self::read(notifications, kept.position, 1, kept.subject, kept.body, None)
    }

    fn read(
        notifications: &Notifications,
        position: u64,
        attempt: u64,
        subject: String,
        body: Bytes,
        delivery: Option<Delivery>,
    ) -> Self {
        let understood = if attempt > notifications.0.config.max_attempts.into() {
            Err(format!("it was delivered {attempt} times and never taken in"))
        } else {
            notifications.understand(&subject, &body)
        };
        let read = understood.map_err(|cause| DeadEvent::new(&subject, &body, position, attempt, cause));
        Self { position, subject, body, attempt, delivery, read }
    }

    /// The same event as one that cannot be told.
    pub(super) fn dead(&self, cause: String) -> Self {
        let Self { position, subject, body, attempt, delivery, .. } = self;
        Self {
            position: *position,
            subject: subject.clone(),
            body: body.clone(),
            attempt: *attempt,
            delivery: delivery.clone(),
            read: Err(DeadEvent::new(subject, body, *position, *attempt, cause)),
        }
    }
}

/// How many of these events, which are in the stream's order, one transaction takes in; at least one. It ends where the stream may have
/// others between, and with what the store can write in time: more would be tried again and again.
pub(super) fn fitting(events: &[Arrived]) -> usize {
    let mut size = 0;
    let mut next = events.first().map_or(0, |event| event.position);
    let fits = |event: &&Arrived| {
        let told = event.read.as_ref().map_or(1, |understood| understood.told.len().max(1));
        size += told * (event.body.len() + ROW);
        let follows = event.position == next;
        next = event.position + 1;
        follows && size <= TRANSACTION
    };
    events.iter().take_while(fits).count().max(1)
}

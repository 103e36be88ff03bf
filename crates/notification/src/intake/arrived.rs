//! Events that arrived from the bus.

use bus::{Delivery, StreamEvent};
use bytes::Bytes;

use crate::Notifications;
use crate::dead_letters::DeadEvent;
use crate::service::InterpretedEvent;

/// About how many bytes one transaction may write.
const MAX_TRANSACTION: usize = 4 << 20;
/// About how many bytes a row has beside the event.
const ROW_OVERHEAD: usize = 1_000;

/// An event that arrived, and its interpretation.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) position: u64,
    subject: String,
    body: Bytes,
    attempt: u64,
    /// To be acknowledged. None for an event that was read from the stream.
    pub(super) delivery: Option<Delivery>,
    pub(super) interpreted: Result<InterpretedEvent, DeadEvent>,
}

impl Arrived {
    /// Interprets an event that the bus delivered.
    pub(super) fn from_delivery(delivery: &Delivery, notifications: &Notifications) -> Self {
        let Delivery { position, attempt, .. } = *delivery;
        let (subject, body) = (delivery.subject.clone(), delivery.body.clone());
        Self::interpret(notifications, position, attempt, subject, body, Some(delivery.clone()))
    }

    /// Interprets an event that was read from the stream.
    pub(super) fn from_stream(event: StreamEvent, notifications: &Notifications) -> Self {
        Self::interpret(notifications, event.position, 1, event.subject, event.body, None)
    }

    fn interpret(
        notifications: &Notifications,
        position: u64,
        attempt: u64,
        subject: String,
        body: Bytes,
        delivery: Option<Delivery>,
    ) -> Self {
        let interpreted = if attempt > notifications.0.config.max_attempts.into() {
            Err(format!("it was delivered {attempt} times and never taken in"))
        } else {
            notifications.interpret(&subject, &body)
        };
        let interpreted =
            interpreted.map_err(|cause| DeadEvent::new(&subject, &body, position, attempt, cause));
        Self { position, subject, body, attempt, delivery, interpreted }
    }

    /// Returns the same event as a dead letter.
    pub(super) fn dead(&self, cause: String) -> Self {
        let Self { position, subject, body, attempt, delivery, .. } = self;
        Self {
            position: *position,
            subject: subject.clone(),
            body: body.clone(),
            attempt: *attempt,
            delivery: delivery.clone(),
            interpreted: Err(DeadEvent::new(subject, body, *position, *attempt, cause)),
        }
    }
}

/// Returns how many of these events, which are in stream order, one transaction takes in; at least one. The batch ends at the first gap in
/// the positions, and at the size that the store can write within its timeout: a larger transaction would fail again and again.
pub(super) fn batch_len(events: &[Arrived]) -> usize {
    let mut size = 0;
    let mut next = events.first().map_or(0, |event| event.position);
    let fits = |event: &&Arrived| {
        let rows = event.interpreted.as_ref().map_or(1, |event| event.messages.len().max(1));
        size += rows * (event.body.len() + ROW_OVERHEAD);
        let is_consecutive = event.position == next;
        next = event.position + 1;
        is_consecutive && size <= MAX_TRANSACTION
    };
    events.iter().take_while(fits).count().max(1)
}

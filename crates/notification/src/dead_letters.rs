//! Dead letters: deliveries and broadcasts that were given up, and events that could not be interpreted. A dead letter is removed only by
//! an operator, or after `notification.dead_retention`.

mod admin;
mod bulk;

use base::id::Uuid;
use bytes::Bytes;
use db::Tx;
use serde::Deserialize;
use work_queue::{FailedItem, FailureHook, Item};

use crate::model::derived;
use crate::store::{self, NewDeadLetter};

pub use admin::{DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetterPage, ReplayReport};
pub(crate) use bulk::{DISCARD, REPLAY, SelectedDeadLetters, jobs};

/// The kind of an event's dead letter. Deliveries have the name of their channel.
const EVENT: &str = "event";
/// The kind of a broadcast's dead letter.
const BROADCAST: &str = "broadcast";
/// All kinds.
pub const DEAD_LETTER_KINDS: [&str; 5] = [EVENT, "live", "log", "webhook", BROADCAST];
/// The destination of a broadcast.
const ALL_USERS: &str = "all";

/// How many characters of a cause and of a destination are stored.
const MAX_CAUSE: usize = 1_000;
const MAX_DESTINATION: usize = 600;
/// About how many bytes one message to the database may have.
const MAX_MESSAGE: usize = 1 << 20;

/// An event that cannot be turned into notifications.
#[derive(Clone, Debug)]
pub(crate) struct DeadEvent {
    id: Uuid,
    subject: String,
    position: i64,
    attempts: i64,
    cause: String,
    body: Bytes,
}

impl DeadEvent {
    pub(crate) fn new(subject: &str, body: &Bytes, position: u64, attempts: u64, cause: String) -> Self {
        Self {
            // The same bytes are one dead letter, however often they arrive.
            id: derived(&[subject.as_bytes(), body]),
            subject: truncated(subject, MAX_DESTINATION),
            position: position.try_into().unwrap_or(i64::MAX),
            attempts: attempts.try_into().unwrap_or(i64::MAX),
            cause: truncated(&cause, MAX_CAUSE),
            body: body.clone(),
        }
    }
}

/// Adds the dead letters of events to the transaction.
pub(crate) async fn record_dead_events(tx: &mut Tx, dead: &[&DeadEvent]) -> Result<(), db::Error> {
    let mut size = 0;
    for event in dead {
        let dead_letter = NewDeadLetter {
            id: &event.id,
            kind: EVENT,
            destination: &event.subject,
            notification: None,
            user: None,
            stream_position: Some(event.position),
            attempts: event.attempts,
            cause: &event.cause,
            payload: &event.body,
            created: None,
        };
        store::add_dead_letter(tx, &dead_letter);
        size += event.body.len();
        if size > MAX_MESSAGE {
            tx.flush().await?;
            size = 0;
        }
    }
    Ok(())
}

/// Logs the dead letters of events. Call it after the commit.
pub(crate) fn log_events(dead: &[&DeadEvent]) {
    for DeadEvent { id, subject, position, cause, .. } in dead {
        tracing::warn!(dead_letter = %id, kind = EVENT, subject, position, cause, "{}", log_line(id));
    }
}

/// Returns the log line of a dead letter.
fn log_line(id: &Uuid) -> String {
    format!(
        "new dead letter: look at it with `playhouse dlq show {id}`, then run `playhouse dlq replay {id}` or `playhouse dlq discard {id}`"
    )
}

/// Writes the dead letters of deliveries that were given up.
#[derive(Debug)]
pub(crate) struct DeadLetterHook;

impl FailureHook for DeadLetterHook {
    fn record_failure(&self, tx: &mut Tx, FailedItem { item, cause }: FailedItem<'_>) {
        #[derive(Deserialize)]
        struct NotificationIdOnly {
            notification_id: Uuid,
        }
        let kind = item.key.split(':').next().unwrap_or_default();
        let read: Option<NotificationIdOnly> = serde_json::from_slice(&item.payload).ok();
        let notification = read.map(|read| read.notification_id);
        let dead_letter = NewDeadLetter {
            notification: notification.as_ref(),
            user: Some(&item.user),
            ..for_item(item, kind, &item.key, cause)
        };
        store::add_dead_letter(tx, &dead_letter);
    }

    fn committed(&self, failed: FailedItem<'_>) {
        log(failed, failed.item.key.split(':').next().unwrap_or_default(), &failed.item.key);
    }
}

/// Writes the dead letters of broadcasts that were given up, each with its progress.
#[derive(Debug)]
pub(crate) struct BroadcastDeadLetterHook;

impl FailureHook for BroadcastDeadLetterHook {
    fn record_failure(&self, tx: &mut Tx, FailedItem { item, cause }: FailedItem<'_>) {
        store::add_dead_letter(tx, &for_item(item, BROADCAST, ALL_USERS, cause));
    }

    fn committed(&self, failed: FailedItem<'_>) {
        log(failed, BROADCAST, ALL_USERS);
    }
}

/// Builds the dead letter of a failed item, without a notification and a user.
fn for_item<'a>(item: &'a Item, kind: &'a str, destination: &'a str, cause: &'a str) -> NewDeadLetter<'a> {
    NewDeadLetter {
        id: &item.id,
        kind,
        destination,
        notification: None,
        user: None,
        stream_position: None,
        attempts: item.attempts.into(),
        cause,
        payload: &item.payload,
        created: Some(item.created),
    }
}

fn log(FailedItem { item, cause }: FailedItem<'_>, kind: &str, destination: &str) {
    let (id, attempts) = (item.id, item.attempts);
    tracing::warn!(dead_letter = %id, kind, destination, attempts, cause, "{}", log_line(&id));
}

fn truncated(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

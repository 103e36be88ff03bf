//! Dead letters: what could not be delivered, and what could not be understood. Nothing leaves them but by an operator, or when its
//! time is over.

mod letters;

use base::id::Uuid;
use bytes::Bytes;
use db::Tx;
use serde::Deserialize;
use work_queue::{FailedItem, Item, OnFailed};

use crate::model::derived;
use crate::store::{self, NewLetter};

pub use letters::{Letter, Letters, Replayed};

/// What a letter of an event is called among the kinds; the others are the words of channels.
const EVENT: &str = "event";
/// The same of a broadcast.
const BROADCAST: &str = "broadcast";
/// All kinds.
pub const KINDS: [&str; 5] = [EVENT, "live", "log", "webhook", BROADCAST];
/// Where a broadcast goes.
const EVERYBODY: &str = "all";

/// How long a cause may be, and the name of a destination.
const CAUSE: usize = 1_000;
const DESTINATION: usize = 600;
/// How much is written to the database at once.
const MESSAGE: usize = 1 << 20;

/// An event that cannot be told.
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
            // However often the same bytes come, they are one letter.
            id: derived(&[subject.as_bytes(), body]),
            subject: shortened(subject, DESTINATION),
            position: position.try_into().unwrap_or(i64::MAX),
            attempts: attempts.try_into().unwrap_or(i64::MAX),
            cause: shortened(&cause, CAUSE),
            body: body.clone(),
        }
    }
}

/// Writes the letters of events.
pub(crate) async fn bury_events(tx: &mut Tx, dead: &[&DeadEvent]) -> Result<(), db::Error> {
    let mut size = 0;
    for event in dead {
        let letter = NewLetter {
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
        store::add_letter(tx, &letter);
        size += event.body.len();
        if size > MESSAGE {
            tx.write().await?;
            size = 0;
        }
    }
    Ok(())
}

/// Logs the letters of events, once they are committed.
pub(crate) fn log_events(dead: &[&DeadEvent]) {
    for DeadEvent { id, subject, position, cause, .. } in dead {
        tracing::warn!(letter = %id, kind = EVENT, subject, position, cause, "{}", what_to_do(id));
    }
}

/// The log line of a letter.
fn what_to_do(id: &Uuid) -> String {
    format!(
        "a dead letter: look at it with `playhouse dlq show {id}`, then `playhouse dlq replay {id}` or `playhouse dlq discard {id}`"
    )
}

/// Writes the letters of deliveries that have failed for good.
#[derive(Debug)]
pub(crate) struct Bury;

impl OnFailed for Bury {
    fn failed(&self, tx: &mut Tx, FailedItem { item, cause }: FailedItem<'_>) {
        #[derive(Deserialize)]
        struct Named {
            notification_id: Uuid,
        }
        let kind = item.key.split(':').next().unwrap_or_default();
        let named: Option<Named> = serde_json::from_slice(&item.payload).ok();
        let notification = named.map(|named| named.notification_id);
        let letter = NewLetter {
            notification: notification.as_ref(),
            user: Some(&item.user),
            ..letter_of(item, kind, &item.key, cause)
        };
        store::add_letter(tx, &letter);
    }

    fn committed(&self, failed: FailedItem<'_>) {
        log(failed, failed.item.key.split(':').next().unwrap_or_default(), &failed.item.key);
    }
}

/// Writes the letters of broadcasts that have failed for good, each with how far it came.
#[derive(Debug)]
pub(crate) struct BuryBroadcast;

impl OnFailed for BuryBroadcast {
    fn failed(&self, tx: &mut Tx, FailedItem { item, cause }: FailedItem<'_>) {
        store::add_letter(tx, &letter_of(item, BROADCAST, EVERYBODY, cause));
    }

    fn committed(&self, failed: FailedItem<'_>) {
        log(failed, BROADCAST, EVERYBODY);
    }
}

/// Returns the letter of an item that has failed, which names no notification and no user.
fn letter_of<'a>(item: &'a Item, kind: &'a str, destination: &'a str, cause: &'a str) -> NewLetter<'a> {
    NewLetter {
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
    tracing::warn!(letter = %id, kind, destination, attempts, cause, "{}", what_to_do(&id));
}

fn shortened(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

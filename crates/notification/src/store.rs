//! The tables of this service: event ids, inboxes, dead letters, disabled destinations, the position of the intake.

mod dead_letters;
mod destinations;
mod inbox;
mod reader_position;
mod remove;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, InsertText, Tx, Value};

use crate::model::{AddressedMessage, Head, Notification};
use crate::service::Created;

pub(crate) use self::dead_letters::{
    NewDeadLetter, add_dead_letter, count_dead_letters, count_matching_dead_letters, dead_events_naming,
    dead_letter, dead_letters, group_dead_letters, last_dead_letter, lock_dead_letter, old_dead_letters,
    remove_dead_letter,
};
pub(crate) use self::destinations::{disable, disabled, enable};
pub use self::inbox::Filter;
pub(crate) use self::inbox::{
    InboxReader, InboxRows, MarkChange, MarkSelector, Retention, event_received, mark, newest_of_user,
    notification_by_id,
};
pub(crate) use self::reader_position::{add_reader, lock_reader, move_reader};
pub(crate) use self::remove::{erase, erase_dead_letters, remove_event_ids, remove_old};

/// How many heads one statement advances, because servers limit the values of a statement.
const HEADS_PER_STATEMENT: usize = 1_000;

const INSERT: &str = "INSERT INTO notification (user_id, position, notification_id, template, texts, data, created_at, expires_at, \
    remove_at)";

/// Begins a transaction and records the ids of events, in one round trip. Also returns which of them are new. Another transaction with
/// one of these events waits until this one ends.
pub(crate) async fn begin_intake(db: &Db, events: &[Uuid]) -> Result<(Tx, HashSet<Uuid>), Error> {
    const NEW: &str = "SELECT event_id FROM notification_event WHERE batch = ? AND event_id IN ({list})";
    // Sorted, so that two transactions with the same events do not deadlock.
    let mut events = events.to_vec();
    events.sort_unstable();
    events.dedup();
    let batch = fastrand::i64(..);
    let insert = db.dialect().pick(
        "INSERT OR IGNORE INTO notification_event (event_id, batch, received_at)",
        "INSERT IGNORE INTO notification_event (event_id, batch, received_at)",
    );
    let rows = events.iter().map(|event| [event.into(), Value::Integer(batch), Value::Now]);
    let (mut tx, added) = db.begin_with_insert(insert, rows).await?;
    if added == events.len() as u64 {
        return Ok((tx, events.into_iter().collect()));
    }
    let ids = all_bytes(&events);
    let (text, padding) = db::list_text(NEW, ids.len());
    let rows: Vec<(Vec<u8>,)> = db::on!(tx, connection => {
        db::bind_list!(sqlx::query_as(text).bind(batch), ids, padding).fetch_all(connection).await?
    });
    Ok((tx, rows.iter().map(|(event,)| uuid(event)).collect()))
}

/// Assigns messages the next positions in the inboxes of their users. Leaves out messages to erased users.
///
/// The heads of the inboxes stay locked until the transaction ends: another transaction that adds to one of them waits.
pub(crate) async fn assign_positions(
    tx: &mut Tx,
    messages: &[AddressedMessage],
    now: Timestamp,
) -> Result<Vec<Created>, Error> {
    let mut counts: BTreeMap<Uuid, i64> = BTreeMap::new();
    for message in messages {
        *counts.entry(message.user).or_default() += 1;
    }
    let mut positions = advance_heads(tx, &counts).await?;
    let created = messages.iter().filter_map(|AddressedMessage { id, user, message }| {
        let position = positions.get_mut(user)?;
        *position += 1;
        let notification = Notification {
            notification_id: *id.as_uuid(),
            user_id: *user,
            position: *position,
            template: message.template.clone(),
            texts: message.texts.clone(),
            data: message.data.clone(),
            created_at: now.as_millis(),
            expires_at: message.expires_at,
            seen_at: None,
            read_at: None,
            archived_at: None,
            traceparent: message.traceparent.clone(),
        };
        Some(Created { notification, message: message.clone() })
    });
    Ok(created.collect())
}

/// Adds the rows of notifications to the commit of the transaction.
pub(crate) fn insert<'a>(
    tx: &mut Tx,
    notifications: impl Iterator<Item = &'a Notification> + Clone,
    retention: Duration,
) {
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    let serialized: Vec<(String, String)> = notifications.clone().map(serialized).collect();
    let rows = notifications.zip(&serialized).map(|(notification, (texts, data))| {
        let kept_until = notification.created_at.saturating_add(retention);
        [
            (&notification.user_id).into(),
            notification.position.into(),
            (&notification.notification_id).into(),
            notification.template.as_str().into(),
            texts.as_str().into(),
            data.as_str().into(),
            notification.created_at.into(),
            Value::from(notification.expires_at),
            notification.expires_at.map_or(kept_until, |end| end.min(kept_until)).into(),
        ]
    });
    tx.insert_at_commit(INSERT, rows);
}

/// Advances the heads of these users and returns the position of each before that. Leaves out erased users.
async fn advance_heads(tx: &mut Tx, counts: &BTreeMap<Uuid, i64>) -> Result<HashMap<Uuid, i64>, Error> {
    let counts: Vec<(Uuid, i64)> = counts.iter().map(|(user, count)| (*user, *count)).collect();
    let mut before = HashMap::with_capacity(counts.len());
    // In the order of user ids, across all statements, so that two transactions with the same users do not deadlock.
    for some in counts.chunks(HEADS_PER_STATEMENT) {
        before.extend(advance_some_heads(tx, some).await?);
    }
    Ok(before)
}

async fn advance_some_heads(tx: &mut Tx, counts: &[(Uuid, i64)]) -> Result<Vec<(Uuid, i64)>, Error> {
    let conflict = tx.dialect().pick(
        " ON CONFLICT (user_id) DO UPDATE SET position = position + excluded.position",
        " ON DUPLICATE KEY UPDATE position = position + VALUES(position)",
    );
    let users: Vec<String> = counts.iter().map(|(user, _)| format!("X'{}'", user.simple())).collect();
    let select = format!(
        "SELECT user_id, position FROM notification_head WHERE erased_at IS NULL AND user_id IN ({})",
        users.join(", ")
    );
    let insert = InsertText { head: "INSERT INTO notification_head (user_id, position)", tail: conflict };
    let rows = counts.iter().map(|(user, count)| [user.into(), Value::Integer(*count)]);
    let heads: HashMap<Uuid, i64> = tx
        .insert_and_read(insert, rows, &select)
        .await?
        .iter()
        .map(|(user, head)| (uuid(user), *head))
        .collect();
    let before = |(user, count): &(Uuid, i64)| Some((*user, heads.get(user)? - count));
    Ok(counts.iter().filter_map(before).collect())
}

/// Reads the heads of these users. Leaves out users without one, and erased users.
pub(crate) async fn heads(db: &Db, users: &[Uuid]) -> Result<HashMap<Uuid, Head>, Error> {
    const HEADS: &str = "SELECT user_id, position, marks FROM notification_head \
        WHERE erased_at IS NULL AND user_id IN ({list})";
    let ids = all_bytes(users);
    let (text, padding) = db::list_text(HEADS, ids.len());
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<(Vec<u8>, i64, i64)> = db::on!(connection, raw => {
            db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(raw).await?
        });
        let head = |position, marks| Head { position, marks };
        Ok(rows.iter().map(|(user, position, marks)| (uuid(user), head(*position, *marks))).collect())
    };
    db.bounded(reading).await
}

/// Returns those of these users who are erased.
pub(crate) async fn erased(db: &Db, users: &[Uuid]) -> Result<HashSet<Uuid>, Error> {
    const ERASED: &str =
        "SELECT user_id FROM notification_head WHERE erased_at IS NOT NULL AND user_id IN ({list})";
    let ids = all_bytes(users);
    let (text, padding) = db::list_text(ERASED, ids.len());
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<(Vec<u8>,)> = db::on!(connection, raw => {
            db::bind_list!(sqlx::query_as(text), ids, padding).fetch_all(raw).await?
        });
        Ok(rows.iter().map(|(user,)| uuid(user)).collect())
    };
    db.bounded(reading).await
}

/// Returns ids as bytes, to be bound to a query.
fn all_bytes(ids: &[Uuid]) -> Vec<&[u8]> {
    ids.iter().map(|id| &id.as_bytes()[..]).collect()
}

/// Returns the texts and the data as the table stores them.
fn serialized(notification: &Notification) -> (String, String) {
    // A map of plain values always serializes.
    (serde_json::to_string(&notification.texts).unwrap_or_default(), notification.data.to_string())
}

pub(crate) fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}

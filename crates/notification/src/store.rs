//! The tables: which events were taken in, and the inboxes.

mod destinations;
mod inbox;
mod letters;
mod order;
mod remove;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Db, Error, InsertText, Tx, Value};

use crate::model::{Addressed, Head, Notification};
use crate::service::MadeOne;

pub(crate) use self::destinations::{disable, disabled, enable};
pub use self::inbox::Filter;
pub(crate) use self::inbox::{Found, InboxReader, Kept, Marking, Which, mark};
pub(crate) use self::letters::{
    NewLetter, add_letter, count_letters, last_letter, letter, letters, lock_letter, old_letters,
    remove_letter,
};
pub(crate) use self::order::{add_reader, lock_reader, move_reader};
pub(crate) use self::remove::{erase, erase_letters, forget_events, remove_old};

/// How many heads are moved on by one statement: servers take so many values and no more.
const HEADS_AT_ONCE: usize = 1_000;

const INSERT: &str = "INSERT INTO notification (user_id, position, notification_id, template, texts, data, created_at, expires_at, remove_at)";

/// Begins a transaction that takes in events and records their ids, in one round trip. Also returns which of them are new. Another
/// transaction that takes in one of them waits for this one to end.
pub(crate) async fn begin_intake(db: &Db, events: &[Uuid]) -> Result<(Tx, HashSet<Uuid>), Error> {
    const NEW: &str = "SELECT event_id FROM notification_event WHERE batch = ? AND event_id IN ({list})";
    // In one order, so that two who take in the same ones do not wait for each other.
    let mut events = events.to_vec();
    events.sort_unstable();
    events.dedup();
    let batch = fastrand::i64(..);
    let insert = db.dialect().pick(
        "INSERT OR IGNORE INTO notification_event (event_id, batch, received_at)",
        "INSERT IGNORE INTO notification_event (event_id, batch, received_at)",
    );
    let rows = events.iter().map(|event| [event.into(), Value::Integer(batch), Value::Now]);
    let (mut tx, added) = db.begin_with(insert, rows).await?;
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

/// Gives messages the next positions in the inboxes of their users. Those of users who were erased are left out.
///
/// The positions are the caller's until the transaction ends: whoever else adds to one of the inboxes waits.
pub(crate) async fn place(
    tx: &mut Tx,
    messages: &[Addressed],
    now: Timestamp,
) -> Result<Vec<MadeOne>, Error> {
    let mut counts: BTreeMap<Uuid, i64> = BTreeMap::new();
    for message in messages {
        *counts.entry(message.user).or_default() += 1;
    }
    let mut next = reserve(tx, &counts).await?;
    let placed = messages.iter().filter_map(|Addressed { id, user, message }| {
        let position = next.get_mut(user)?;
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
        Some(MadeOne { notification, message: message.clone() })
    });
    Ok(placed.collect())
}

/// Writes notifications that have their place, when the transaction is committed.
pub(crate) fn insert<'a>(
    tx: &mut Tx,
    notifications: impl Iterator<Item = &'a Notification> + Clone,
    retention: Duration,
) {
    let kept = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    let written: Vec<(String, String)> = notifications.clone().map(written).collect();
    let rows = notifications.zip(&written).map(|(notification, (texts, data))| {
        let kept_until = notification.created_at.saturating_add(kept);
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

/// Moves the heads of these users on, and says where each was before. Users who were erased are not among them.
async fn reserve(tx: &mut Tx, counts: &BTreeMap<Uuid, i64>) -> Result<HashMap<Uuid, i64>, Error> {
    let counts: Vec<(Uuid, i64)> = counts.iter().map(|(user, count)| (*user, *count)).collect();
    let mut before = HashMap::with_capacity(counts.len());
    // In the order of users, over all pieces, so that two who add to the same ones do not wait for each other.
    for some in counts.chunks(HEADS_AT_ONCE) {
        before.extend(reserve_some(tx, some).await?);
    }
    Ok(before)
}

async fn reserve_some(tx: &mut Tx, counts: &[(Uuid, i64)]) -> Result<Vec<(Uuid, i64)>, Error> {
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

/// Reads the heads of these users, as far as they have any.
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

/// Those of these users who were erased.
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

/// Ids as they are bound.
fn all_bytes(ids: &[Uuid]) -> Vec<&[u8]> {
    ids.iter().map(|id| &id.as_bytes()[..]).collect()
}

/// Texts and data as they are kept.
fn written(notification: &Notification) -> (String, String) {
    // They are made of plain values.
    (serde_json::to_string(&notification.texts).unwrap_or_default(), notification.data.to_string())
}

pub(crate) fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}

//! Everything that notifications know about a user, for the export.

use base::Timestamp;
use base::id::Uuid;
use base::page::read_all;
use serde_json::{Value, json};
use service::PlayerData;
use work_queue::ItemView;

use crate::deliver::state_word;
use crate::http::problem;
use crate::model::Notification;
use crate::{DeadLetter, DeadLetterFilter, Error, Notifications, store};

/// How many rows one query reads.
const PAGE: u32 = 1_000;

/// Returns what notifications know about users.
pub(crate) fn player_data() -> Vec<PlayerData> {
    let export = |notifications: Notifications, user| async move {
        export(&notifications, user).await.map_err(problem)
    };
    vec![PlayerData::new("notifications", export)]
}

async fn export(notifications: &Notifications, user: Uuid) -> Result<Value, Error> {
    let db = &notifications.0.db;
    let inbox = read_all(
        PAGE,
        |last: &Notification| last.position,
        |before| store::newest_of_user(db, user, before, PAGE),
    );
    let inbox = inbox.await?;
    let mut deliveries = Vec::new();
    for queue in notifications.deliveries().queues() {
        let items =
            read_all(PAGE, |last: &ItemView| last.number, |before| queue.newest_of_user(user, before, PAGE));
        deliveries.extend(items.await?.iter().map(delivery));
    }
    let of_user = |after: Option<i64>| async move {
        let filter =
            DeadLetterFilter { user: Some(user), after: after.unwrap_or(0), ..DeadLetterFilter::default() };
        store::dead_letters(db, &filter, PAGE).await
    };
    let mut letters = read_all(PAGE, |last: &DeadLetter| last.number, of_user).await?;
    letters.extend(store::dead_events_naming(db, user).await?);
    Ok(json!({
        "inbox": inbox.iter().map(notification).collect::<Vec<_>>(),
        "deliveries": deliveries,
        "dead_letters": letters.iter().map(dead_letter).collect::<Vec<_>>(),
    }))
}

fn notification(notification: &Notification) -> Value {
    let at = |millis: Option<i64>| millis.map(|at| Timestamp::from_millis(at).to_rfc3339());
    json!({
        "notification_id": notification.notification_id.to_string(), "position": notification.position,
        "template": notification.template, "texts": notification.texts, "data": notification.data,
        "created_at": at(Some(notification.created_at)), "expires_at": at(notification.expires_at),
        "seen_at": at(notification.seen_at), "read_at": at(notification.read_at),
        "archived_at": at(notification.archived_at),
    })
}

/// Exports a delivery with its notification, which the inbox may have no longer.
fn delivery(item: &ItemView) -> Value {
    let sent: Option<Notification> = serde_json::from_slice(&item.payload).ok();
    json!({
        "channel": item.key, "state": state_word(item.state), "attempts": item.attempts,
        "created_at": item.created.to_rfc3339(), "cause": item.cause,
        "notification": sent.as_ref().map(notification),
    })
}

/// Exports a dead letter without its payload: an event may also name other users.
fn dead_letter(letter: &DeadLetter) -> Value {
    json!({
        "dead_letter_id": letter.id.to_string(), "kind": letter.kind, "destination": letter.destination,
        "notification_id": letter.notification.map(|id| id.to_string()), "cause": letter.cause,
        "created_at": letter.created.to_rfc3339(), "given_up_at": letter.died.to_rfc3339(),
    })
}

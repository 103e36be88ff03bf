//! What notifications know of a user, an event or a notification, and their figures.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use outbox::Outbox;
use screens::{Combine, Figure, Measure, Stage, Step, Subject, Tone, Unit};
use work_queue::{ItemView, State};

use crate::model::{Notification, derived};
use crate::{DeadLetter, DeadLetterFilter, Error, Notifications, store};

/// How many recipients of an event are looked up.
const MAX_RECIPIENTS: usize = 20;
/// How many events are compared with a notification to find the one that caused it.
const MAX_EVENTS: u32 = 2_000;
/// How many milliseconds before the notification its event may have been published. Longer ago only if the intake was late.
const ORIGIN_BEFORE: i64 = 60_000;
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(2);

/// Returns the steps of a user, or of an event, a notification, a broadcast or a dead letter with this id.
pub(crate) async fn steps(
    notifications: &Notifications,
    outbox: Option<&Outbox>,
    subject: &Subject,
    limit: u32,
) -> Result<Vec<Step>, Error> {
    let mut steps = match subject {
        Subject::User(user) => of_user(notifications, *user, limit).await?,
        Subject::Id(id) => match Uuid::try_parse(id) {
            Ok(id) => of_id(notifications, outbox, id).await?,
            Err(_) => Vec::new(),
        },
    };
    steps.sort_by_key(|step| std::cmp::Reverse(step.at));
    steps.truncate(limit as usize);
    Ok(steps)
}

async fn of_user(notifications: &Notifications, user: Uuid, limit: u32) -> Result<Vec<Step>, Error> {
    let inbox = store::newest_of_user(&notifications.0.db, user, None, limit).await?;
    let mut steps: Vec<Step> = inbox.iter().flat_map(inbox_steps).collect();
    for queue in notifications.deliveries().queues() {
        let items = queue.newest_of_user(user, None, limit).await?;
        steps.extend(items.iter().filter_map(delivery_step));
    }
    let filter = DeadLetterFilter { user: Some(user), ..DeadLetterFilter::default() };
    let page = notifications.dead_letters(&filter, limit).await?;
    steps.extend(page.dead_letters.iter().map(dead_letter_step));
    Ok(steps)
}

async fn of_id(notifications: &Notifications, outbox: Option<&Outbox>, id: Uuid) -> Result<Vec<Step>, Error> {
    let mut steps = Vec::new();
    let notification = store::notification_by_id(&notifications.0.db, id).await?;
    steps.extend(notification.iter().flat_map(inbox_steps));
    for (_, item) in notifications.deliveries().for_notification(id).await? {
        steps.extend(delivery_step(&item));
    }
    if let Some(notification) = &notification
        && let Some(event) = origin(outbox, notification).await?
    {
        steps = steps.into_iter().map(|step| step.of_event(event).follow(event)).collect();
    }
    if let Some(received) = store::event_received(&notifications.0.db, id).await? {
        let taken = Step::new(received, "sql", "notification", "Taken in from the bus").tone(Tone::Good);
        let taken = taken.stage(Stage::Received).of_event(id).follow(id);
        let recipients = recipients(outbox, id).await?;
        let notification = |user: &Uuid| derived(&[id.as_bytes(), user.as_bytes()]);
        steps.push(recipients.iter().map(notification).fold(taken, Step::follow));
    }
    if let Some(broadcast) = notifications.broadcasts().progress(id).await? {
        let what = format!("Broadcast {:?} to {} players so far", broadcast.title, broadcast.notified);
        let step = Step::new(broadcast.created, "sql", "notification", what);
        steps.push(step.link("Broadcast", format!("/console/broadcasts/{id}")));
    }
    match notifications.dead_letter(id).await {
        Ok(letter) => steps.push(dead_letter_step(&letter)),
        Err(Error::DeadLetterNotFound(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(steps)
}

/// Returns the users that an event names, while the outbox keeps it.
async fn recipients(outbox: Option<&Outbox>, event: Uuid) -> Result<Vec<Uuid>, Error> {
    let Some(outbox) = outbox else { return Ok(Vec::new()) };
    let Some(event) = outbox.find_batched_event(event).await? else { return Ok(Vec::new()) };
    let data: serde_json::Value = serde_json::from_slice(event.data.as_bytes()).unwrap_or_default();
    let several = data["user_ids"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = [&data["user_id"]].into_iter().chain(several);
    let users = named.filter_map(|user| Uuid::try_parse(user.as_str()?).ok());
    Ok(users.take(MAX_RECIPIENTS).collect())
}

/// Finds the event that caused a notification. The inbox does not have its id, but the id of the notification is derived from it: so it is
/// one of the ids in the data, or that of an event that was published shortly before.
async fn origin(outbox: Option<&Outbox>, notification: &Notification) -> Result<Option<Uuid>, Error> {
    let Notification { notification_id, user_id, data, created_at, .. } = notification;
    let is_origin = |event: &Uuid| derived(&[event.as_bytes(), user_id.as_bytes()]) == *notification_id;
    let fields = data.as_object().into_iter().flat_map(|fields| fields.values());
    let named = fields.filter_map(|value| Uuid::try_parse(value.as_str()?).ok()).find(is_origin);
    let (None, Some(outbox)) = (named, outbox) else { return Ok(named) };
    // Both times may be late by the difference of the clocks.
    let created = Timestamp::from_millis(*created_at);
    let since = Timestamp::from_millis(created_at.saturating_sub(ORIGIN_BEFORE));
    let published = outbox.queue().ids_done(since, created.after(CLOCK_DIFFERENCE), MAX_EVENTS).await?;
    Ok(published.into_iter().find(is_origin))
}

fn inbox_steps(notification: &Notification) -> Vec<Step> {
    let id = notification.notification_id;
    let title = notification.texts.values().next().map_or("", |text| text.title.as_str());
    let step = |at: i64, what: String| {
        let step = Step::new(Timestamp::from_millis(at), "sql", "notification", what);
        step.link("Notification", format!("/console/notifications/{id}")).follow(id)
    };
    let mut steps =
        vec![step(notification.created_at, format!("In the inbox: {title:?}")).stage(Stage::InInbox)];
    let marks = [
        ("Seen", notification.seen_at),
        ("Read", notification.read_at),
        ("Archived", notification.archived_at),
    ];
    let marked =
        |(mark, at): (&str, Option<i64>)| Some(step(at?, format!("{mark}: {title:?}")).stage(Stage::Marked));
    steps.extend(marks.into_iter().filter_map(marked));
    steps
}

/// Returns the step of a delivery that has ended or failed an attempt.
fn delivery_step(item: &ItemView) -> Option<Step> {
    let cause = item.cause.as_deref().unwrap_or("unknown cause");
    let (what, tone) = match item.state {
        State::Done => (format!("Delivered to {}", item.key), Tone::Good),
        State::Failed | State::Skipped => (format!("Delivery to {} given up: {cause}", item.key), Tone::Bad),
        State::Pending if item.cause.is_some() => {
            (format!("Delivery to {} is tried again then: {cause}", item.key), Tone::Warning)
        }
        State::Pending | State::InFlight | State::Held => return None,
    };
    let step = Step::new(item.due, "sql", "notification", what).tone(tone).stage(Stage::Delivered);
    let read: Option<Notification> = serde_json::from_slice(&item.payload).ok();
    Some(match read {
        Some(Notification { notification_id: id, .. }) => {
            step.link("Notification", format!("/console/notifications/{id}")).follow(id)
        }
        None => step,
    })
}

fn dead_letter_step(letter: &DeadLetter) -> Step {
    let what = format!("Dead letter for {}: {}", letter.destination, letter.cause);
    let step = Step::new(letter.died, "sql", "notification", what).tone(Tone::Bad).stage(Stage::Delivered);
    let step = step.link("Dead letter", format!("/console/dead-letters/{}", letter.id));
    letter.notification.into_iter().fold(step, Step::follow)
}

/// Returns the figures of the overview.
pub(crate) fn figures() -> Vec<Figure> {
    vec![
        Figure {
            name: "notification_events",
            title: "Events received",
            unit: Unit::PerSecond,
            metric: "playhouse_notification_events",
            labels: &[],
            measure: Measure::Rate,
            combine: Combine::Sum,
            href: "/console/dead-letters",
        },
        Figure {
            name: "notification_dead_letters",
            title: "Dead letters",
            unit: Unit::Count,
            metric: "playhouse_notification_dead_letters",
            labels: &[],
            measure: Measure::Gauge,
            combine: Combine::Max,
            href: "/console/dead-letters",
        },
        Figure {
            name: "webhook_latency",
            title: "Webhook requests, p95",
            unit: Unit::Seconds,
            metric: "playhouse_webhook_request_duration_seconds",
            labels: &[],
            measure: Measure::Quantile(0.95),
            combine: Combine::Max,
            href: "/console/webhooks",
        },
    ]
}

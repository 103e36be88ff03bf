//! What the outbox knows of an event or an ordering key, and the figures of the relay.

use base::id::Uuid;
use screens::{Combine, Figure, Measure, Step, Subject, Tone, Unit};
use work_queue::{ItemView, State};

use crate::{Outbox, event};

/// Returns the steps of an event, or of the newest events of an ordering key. The key of an account's events is its id.
pub(crate) async fn steps(outbox: &Outbox, subject: &Subject, limit: u32) -> Result<Vec<Step>, db::Error> {
    let queue = outbox.queue();
    let (key, id) = match subject {
        Subject::User(user) => (user.to_string(), None),
        Subject::Id(id) => (id.clone(), Uuid::try_parse(id).ok()),
    };
    let mut items = queue.newest_of_key(&key, limit.div_ceil(2).max(1)).await?;
    if let Some(id) = id
        && let Some(item) = queue.find(id).await?
        && items.iter().all(|known| known.number != item.number)
    {
        items.push(item);
    }
    let mut steps: Vec<Step> = items.iter().flat_map(item_steps).collect();
    steps.sort_by_key(|step| std::cmp::Reverse(step.at));
    steps.truncate(limit as usize);
    Ok(steps)
}

fn item_steps(item: &ItemView) -> Vec<Step> {
    let events = event::decode_all(item.id, &item.payload).unwrap_or_default();
    let kind = events.first().map_or("an event that cannot be read", |event| event.kind.as_str());
    let href = format!("/console/pipeline/{}", item.id);
    let step = |at, what: String, tone| {
        let step =
            Step::new(at, "sql", "outbox", what).tone(tone).link("Event", href.clone()).follow(item.id);
        // The ordering key leads to the account.
        if item.key == item.id.to_string() { step } else { step.follow(&item.key) }
    };
    let appended = step(item.created, format!("Appended {kind} to the outbox"), Tone::Neutral);
    let cause = item.cause.as_deref().unwrap_or("unknown cause");
    let state = match item.state {
        State::Pending if item.cause.is_some() => {
            step(item.due, format!("{kind} is published again then: {cause}"), Tone::Warning)
        }
        State::Pending | State::InFlight | State::Held => return vec![appended],
        State::Done => step(item.due, format!("Published {kind}"), Tone::Good),
        State::Failed => step(item.due, format!("Publishing {kind} failed: {cause}"), Tone::Bad),
        State::Skipped => step(item.due, format!("An operator skipped {kind}"), Tone::Warning),
    };
    vec![appended, state]
}

/// Returns the figures of the relay. The metric of a count is the same in all processes that count, so the largest one is shown.
pub(crate) fn figures() -> Vec<Figure> {
    const QUEUE: &[(&str, &str)] = &[("queue", "outbox")];
    let gauge = |name, title, unit, metric| Figure {
        name,
        title,
        unit,
        metric,
        labels: QUEUE,
        measure: Measure::Gauge,
        combine: Combine::Max,
        href: "/console/pipeline",
    };
    vec![
        Figure {
            name: "outbox_published",
            title: "Events published",
            unit: Unit::PerSecond,
            metric: "playhouse_work_finished",
            labels: &[("queue", "outbox"), ("outcome", "done")],
            measure: Measure::Rate,
            combine: Combine::Sum,
            href: "/console/pipeline",
        },
        gauge(
            "outbox_oldest",
            "Oldest event that is due",
            Unit::Seconds,
            "playhouse_work_oldest_age_seconds",
        ),
        gauge("outbox_open", "Events that are not published", Unit::Count, "playhouse_work_open"),
        gauge("outbox_failed", "Failed events", Unit::Count, "playhouse_work_failed"),
    ]
}

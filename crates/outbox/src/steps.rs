//! What the outbox knows of an event or an ordering key, and the figures of the relay.

use base::id::Uuid;
use screens::{Combine, Figure, Measure, Stage, Step, Subject, Tone, Unit};
use work_queue::{ItemView, State};

use crate::{Outbox, batches, events_of};

/// How many events of a batch a trace follows.
const MAX_BATCHED: usize = 10;

/// Returns the steps of an event, alone or in a batch, or of the newest events of an ordering key. Events have no index by user: services
/// lead from a user to the ids or keys of the user's events.
pub(crate) async fn steps(outbox: &Outbox, subject: &Subject, limit: u32) -> Result<Vec<Step>, db::Error> {
    let Subject::Id(id) = subject else { return Ok(Vec::new()) };
    let queue = outbox.queue();
    let items = queue.newest_of_key(id, limit.div_ceil(2).max(1)).await?;
    let mut steps: Vec<Step> = items.iter().flat_map(|item| item_steps(item, None)).collect();
    if let Ok(event) = Uuid::try_parse(id)
        && items.iter().all(|item| item.id != event)
    {
        let (item, is_batch) = match queue.find(event).await? {
            Some(item) => (Some(item), false),
            None => (batches::row_of_event(outbox, event).await?, true),
        };
        let item = item.iter();
        steps.extend(item.flat_map(|item| item_steps(item, is_batch.then_some(event))));
    }
    steps.sort_by_key(|step| std::cmp::Reverse(step.at));
    steps.truncate(limit as usize);
    Ok(steps)
}

/// Returns the steps of a row. `of_batch` is the event to describe, if the row is a batch with others.
fn item_steps(item: &ItemView, of_batch: Option<Uuid>) -> Vec<Step> {
    let events = events_of(item);
    let id = of_batch.unwrap_or(item.id);
    let event = events.iter().find(|event| *event.id.as_uuid() == id).or(events.first());
    let kind = event.map_or("an event that cannot be read", |event| event.kind.as_str());
    let others = match events.len() {
        0 | 1 => String::new(),
        several => format!(", in one row with {}", base::counted(several - 1, "other")),
    };
    let href = format!("/console/pipeline/{}", item.id);
    let step = |at, store, stage, what: String, tone| {
        let step = Step::new(at, store, "outbox", what).tone(tone).link("Event", href.clone());
        // The row of a batch leads to its events.
        let batched = events.iter().map(|event| *event.id.as_uuid()).filter(|_| id == item.id);
        batched.take(MAX_BATCHED).fold(step.stage(stage).of_event(id).follow(id), Step::follow)
    };
    let what = format!("Appended {kind} to the outbox{others}");
    let appended = step(item.created, "sql", Stage::Appended, what, Tone::Neutral);
    let cause = item.cause.as_deref().unwrap_or("unknown cause");
    let published = |store, what, tone| step(item.due, store, Stage::Published, what, tone);
    let state = match item.state {
        State::Pending if item.cause.is_some() => {
            published("sql", format!("{kind} is published again then: {cause}"), Tone::Warning)
        }
        State::Pending | State::InFlight | State::Held => return vec![appended],
        // A row that was claimed several times may have been published before, for example before an operator republished it.
        State::Done if item.lease > 1 => published("bus", format!("Last published {kind}"), Tone::Good),
        State::Done => published("bus", format!("Published {kind}"), Tone::Good),
        State::Failed => published("bus", format!("Publishing {kind} failed: {cause}"), Tone::Bad),
        State::Skipped => published("sql", format!("An operator skipped {kind}"), Tone::Warning),
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

//! What matchmaking knows of a ticket, a match or a player, and the figures of the overview.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use bus::Event;
use screens::{Combine, Figure, Measure, Step, Subject, Tone, Unit};
use serde_json::Value;
use service::StatusError;
use work_queue::{ItemView, State};

use super::{MatchmakingConsole, tickets, time};
use crate::QUEUE_FIELD;
use crate::admin::TicketState;
use crate::allocation::AbandonedMatch;
use crate::event::MATCH_MADE;
use crate::model::{MatchId, TicketId};
use crate::wire;

const PART: &str = "matchmaking";
/// How long after the assignment of a ticket the event of its match is searched for. It is normally published within milliseconds.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);
/// How long after its creation the match of a ticket is searched for that Redis has removed.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How many tickets of a match a trace follows.
const MAX_TICKETS: usize = 10;
const HREF: &str = "/console/matchmaking";

/// Returns the figures of matchmaking on the overview.
pub(crate) fn figures() -> Vec<Figure> {
    let figure = |name, title, unit, metric, measure, combine| Figure {
        name,
        title,
        unit,
        metric,
        labels: &[],
        measure,
        combine,
        href: HREF,
    };
    const P99: Measure = Measure::Quantile(0.99);
    let waits = "playhouse_matchmaking_time_to_assignment_seconds";
    let oldest = "playhouse_matchmaking_oldest_ticket_age_seconds";
    let assigned = "minimatch_backend_tickets_assigned";
    vec![
        figure(
            "matchmaking_joins",
            "Joins of queues",
            Unit::PerSecond,
            "playhouse_matchmaking_joins",
            Measure::Rate,
            Combine::Sum,
        ),
        figure(
            "matchmaking_assigned",
            "Tickets assigned",
            Unit::PerSecond,
            assigned,
            Measure::Rate,
            Combine::Sum,
        ),
        figure("matchmaking_wait", "Time to assignment, p99", Unit::Seconds, waits, P99, Combine::Max),
        figure(
            "matchmaking_oldest",
            "Oldest ticket without a match",
            Unit::Seconds,
            oldest,
            Measure::Gauge,
            Combine::Max,
        ),
    ]
}

/// Returns what matchmaking knows about a subject, at most `limit` steps: the newest ones. Redis keeps a ticket until it expires, and an
/// assigned one for a while; later only SQL knows the match.
pub(crate) async fn steps(
    console: &MatchmakingConsole,
    subject: &Subject,
    limit: u32,
) -> Result<Vec<Step>, StatusError> {
    let mut steps = Vec::new();
    match subject {
        Subject::User(user) => {
            for (id, _) in console.admin.store().player_tickets(*user).await? {
                steps.extend(ticket_steps(console, &id).await?);
            }
        }
        Subject::Id(text) => {
            if let Ok(id) = Uuid::try_parse(text) {
                steps.extend(match_steps(console, id).await?);
            } else if let Some(id) = TicketId::parse(text) {
                steps.extend(ticket_steps(console, &id).await?);
            }
        }
    }
    steps.sort_by_key(|step| std::cmp::Reverse(step.at));
    steps.truncate(limit as usize);
    Ok(steps)
}

async fn ticket_steps(console: &MatchmakingConsole, id: &TicketId) -> Result<Vec<Step>, StatusError> {
    let store = console.admin.store();
    let status = store.status(id).await?;
    let Some(data) = &status.found.data else { return forgotten_ticket_steps(console, id).await };
    let ticket = wire::decode_ticket(id.clone(), data)?;
    let queue = ticket
        .fields
        .strings
        .get(QUEUE_FIELD)
        .map_or(String::new(), |queue| format!(" in the queue {queue}"));
    let created = time(ticket.created.micros());
    let mut steps = vec![redis_step(id, created, format!("Created the ticket {id}{queue}"))];
    if let Some(since) = status.pending_since {
        // Redis has whole seconds.
        let at = base::Timestamp::from_millis(since * 1_000).max(created);
        let what = match &status.holder {
            Some(holder) => {
                format!("A Director fetched the ticket {id} in a match of profile {}", holder.profile)
            }
            None => format!("An engine fetched the ticket {id}"),
        };
        steps.push(redis_step(id, at, what));
    }
    if TicketState::of(&status) == TicketState::Assigned {
        // An assigned ticket expires a fixed time after its assignment.
        let since = store.assigned_ttl().saturating_sub(status.ttl.unwrap_or_default());
        let at = before(console.admin.clock().now(), since).max(created);
        let event = match_event(console, id, at, RECORDED_WITHIN).await?;
        // Two reads of the time left differ by milliseconds, and a view must not change on its own.
        let second = Timestamp::from_millis(at.as_millis() / 1_000 * 1_000).max(created);
        steps.push(assigned_step(id, event.as_ref().map_or(second, |event| event.time), event.as_ref()));
    }
    Ok(steps)
}

/// Returns the steps of a ticket that Redis has removed. The outbox has the event of its match for a while longer.
async fn forgotten_ticket_steps(
    console: &MatchmakingConsole,
    id: &TicketId,
) -> Result<Vec<Step>, StatusError> {
    let Some(created) = id.created().map(|moment| time(moment.micros())) else { return Ok(Vec::new()) };
    let Some(event) = match_event(console, id, created, LONGEST_WAIT).await? else { return Ok(Vec::new()) };
    let what = format!("Created the ticket {id} (its id has the second; Redis has removed the rest)");
    let assigned = assigned_step(id, event.time, Some(&event));
    Ok(vec![redis_step(id, created, what), assigned])
}

/// Finds the event of a ticket's match, which was published in this period or is not published yet.
async fn match_event(
    console: &MatchmakingConsole,
    id: &TicketId,
    since: Timestamp,
    within: Duration,
) -> Result<Option<Event>, StatusError> {
    let text = format!("\"{id}\"");
    let found = console.outbox.find_batched_text(&text, since, within).await?;
    Ok(found.filter(|event| event.kind == MATCH_MADE))
}

fn redis_step(id: &TicketId, at: Timestamp, what: String) -> Step {
    Step::new(at, "redis", PART, what).link("Ticket", tickets::href(id)).follow(id)
}

fn assigned_step(id: &TicketId, at: Timestamp, event: Option<&Event>) -> Step {
    let Some(event) = event else {
        return redis_step(id, at, format!("The ticket {id} was assigned to a match")).tone(Tone::Good);
    };
    let what = format!("The ticket {id} was assigned to the match {}", event.id);
    redis_step(id, at, what).tone(Tone::Good).of_event(*event.id.as_uuid()).follow(event.id)
}

async fn match_steps(console: &MatchmakingConsole, id: Uuid) -> Result<Vec<Step>, StatusError> {
    let mut steps = Vec::new();
    let step = |at, what: String| Step::new(at, "sql", PART, what).of_event(id).follow(id);
    if let Some(open) = console.allocations.find_open(MatchId::from_uuid(id)).await? {
        let what =
            format!("Requested a server from the assigner {} for profile {}", open.assigner, open.profile);
        steps.push(step(open.asked_at, what));
    }
    if let Some(call) = console.allocations.queue().find(id).await? {
        steps.extend(give_back_steps(&call, step));
    }
    let event = console.outbox.find_batched_event(id).await?;
    if let Some(event) = event.filter(|event| event.kind == MATCH_MADE) {
        steps.push(made_step(&event));
    }
    Ok(steps)
}

/// Returns the steps of a call that gives the server of a match back.
fn give_back_steps(call: &ItemView, step: impl Fn(Timestamp, String) -> Step) -> Vec<Step> {
    let mut steps = Vec::new();
    let abandoned: Option<AbandonedMatch> = serde_json::from_slice(&call.payload).ok();
    if let Some(abandoned) = abandoned {
        let what = format!("The match was not made: {}", abandoned.reason.word());
        let step = step(call.created, what).tone(Tone::Warning).link("Allocations", "/console/allocations");
        steps.push(abandoned.ticket_ids.iter().fold(step, |step, ticket| step.follow(ticket)));
    }
    let end = match call.state {
        State::Done => Some((Tone::Good, "The server was given back".to_owned())),
        State::Failed => {
            let cause = call.cause.as_deref().unwrap_or("unknown cause");
            Some((Tone::Bad, format!("The server was not given back: {cause}")))
        }
        State::Skipped => Some((Tone::Warning, "An operator skipped giving the server back".to_owned())),
        State::Pending | State::InFlight | State::Held => None,
    };
    steps.extend(end.map(|(tone, what)| step(call.due, what).tone(tone)));
    steps
}

/// Returns the step of a match that was made: one script in Redis assigned its tickets.
fn made_step(event: &Event) -> Step {
    let data: Value = serde_json::from_slice(event.data.as_bytes()).unwrap_or_default();
    let text = |name: &str| data[name].as_str().unwrap_or("?");
    let tickets = data["ticket_ids"].as_array().map(Vec::as_slice).unwrap_or_default();
    let what = format!(
        "Made a match of {} for the profile {} at {}",
        base::counted(tickets.len(), "ticket"),
        text("match_profile"),
        text("connection")
    );
    let step = Step::new(event.time, "redis", PART, what).tone(Tone::Good);
    let step = step.of_event(*event.id.as_uuid()).follow(event.id);
    tickets.iter().filter_map(Value::as_str).take(MAX_TICKETS).fold(step, Step::follow)
}

fn before(at: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_millis(at.as_millis().saturating_sub(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
}

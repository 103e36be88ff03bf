//! What matchmaking knows of a ticket, a match or a player, and the figures of the overview.

use base::id::Uuid;
use screens::{Combine, Figure, Measure, Step, Subject, Tone, Unit};
use service::StatusError;
use work_queue::State;

use super::{MatchmakingConsole, tickets, time};
use crate::QUEUE_FIELD;
use crate::admin::TicketState;
use crate::model::{MatchId, TicketId};
use crate::wire;

const PART: &str = "matchmaking";
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
    let status = console.admin.store().status(id).await?;
    let Some(data) = &status.found.data else { return Ok(Vec::new()) };
    let ticket = wire::decode_ticket(id.clone(), data)?;
    let created = time(ticket.created.micros());
    let step =
        |at, what: String| Step::new(at, "redis", PART, what).link("Ticket", tickets::href(id)).follow(id);
    let queue = ticket
        .fields
        .strings
        .get(QUEUE_FIELD)
        .map_or(String::new(), |queue| format!(" in the queue {queue}"));
    let mut steps = vec![step(created, format!("Created a ticket{queue}"))];
    if let Some(since) = status.pending_since {
        let at = base::Timestamp::from_millis(since * 1_000);
        steps.push(step(at, "An engine fetched the ticket".to_owned()));
    }
    if TicketState::of(&status) == TicketState::Assigned {
        // Redis keeps no time of the assignment. The event of the match has it.
        steps.push(step(created, "The ticket was assigned to a match later".to_owned()).tone(Tone::Good));
    }
    Ok(steps)
}

async fn match_steps(console: &MatchmakingConsole, id: Uuid) -> Result<Vec<Step>, StatusError> {
    let mut steps = Vec::new();
    let step = |at, what: String| Step::new(at, "sql", PART, what).follow(id);
    if let Some(open) = console.allocations.find_open(MatchId::from_uuid(id)).await? {
        let what =
            format!("Requested a server from the assigner {} for profile {}", open.assigner, open.profile);
        steps.push(step(open.asked_at, what));
    }
    if let Some(call) = console.allocations.queue().find(id).await? {
        let abandoned: Option<crate::allocation::AbandonedMatch> = serde_json::from_slice(&call.payload).ok();
        if let Some(abandoned) = abandoned {
            let what = format!("The match was not made: {}", abandoned.reason.word());
            let step =
                step(call.created, what).tone(Tone::Warning).link("Allocations", "/console/allocations");
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
        if let Some((tone, what)) = end {
            steps.push(step(call.due, what).tone(tone));
        }
    }
    if let Some(event) = console.outbox.find_event(id).await? {
        steps.push(step(event.time, format!("{} was recorded", event.kind)));
    }
    Ok(steps)
}

//! Matchmaking for players.

use std::collections::BTreeMap;

use ::http::StatusCode;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base::{Code, Timestamp};
use http_server::{JsonBody, Problem};
use matchmaking::model::TicketId;
use matchmaking::store::TicketReason;
use matchmaking::{Error, JoinRequest, JoinedTicket, PlayerReadyCheck, PlayerTicket, Refusal};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sessions::Caller;
use utoipa::ToSchema;

use super::{Segment, failed};
use crate::Gateway;

/// A request to join a queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"queue": "duel"}))]
pub(crate) struct TicketRequest {
    /// One of the queues that /v1/client-config lists.
    queue: String,
    /// Search fields that players of this queue may set.
    #[serde(default)]
    numbers: BTreeMap<String, f64>,
    #[serde(default)]
    strings: BTreeMap<String, String>,
    #[serde(default)]
    tags: Vec<String>,
    /// The player's previous, assigned ticket. Without it, a request soon after a match returns that match again.
    #[serde(default)]
    replaces: Option<String>,
}

/// A ticket of the caller.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TicketAnswer {
    ticket_id: String,
    queue: String,
    /// WAITING, READY_CHECK while the players of a match are asked, ASSIGNED, or GONE: cancelled or expired.
    state: &'static str,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it expires; RFC 3339.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// The game server, once the ticket is assigned.
    assignment: Option<AssignmentAnswer>,
    /// How much longer it waits. null if that is unknown, and unless it is WAITING.
    estimate: Option<EstimateAnswer>,
    /// The ready check, in the state READY_CHECK.
    ready_check: Option<ReadyCheckAnswer>,
    /// Why the ticket is GONE, or is WAITING again after a ready check.
    reason: Option<ReasonAnswer>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct EstimateAnswer {
    /// From now on: of the tickets that waited as long as this one, half waited for less.
    seconds: u64,
    /// `recent-matches`: how long the tickets of recent matches waited. More may follow.
    basis: &'static str,
}

/// A match waits until all its players have accepted it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ReadyCheckAnswer {
    /// When players who have not answered lose their ticket; RFC 3339.
    #[schema(format = DateTime)]
    expires_at: String,
    /// How many players have accepted.
    accepted: u32,
    /// How many players are asked.
    players: u32,
    /// The caller's answer. Without one, accept or decline.
    answer: Option<ReadyAnswer>,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReadyAnswer {
    Accepted,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReasonAnswer {
    Cancelled,
    Declined,
    NoAnswer,
    Expired,
    NotEveryoneAccepted,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AssignmentAnswer {
    /// The address of the game server.
    connection: String,
    /// Further data from the assigner.
    #[schema(value_type = Object)]
    extensions: Map<String, Value>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicketList {
    /// Waiting and recently assigned tickets, sorted by age, the oldest first.
    pub(super) tickets: Vec<TicketAnswer>,
}

/// Join a queue
///
/// A player has one ticket per queue: a second request, from any device, returns the existing ticket.
#[utoipa::path(
    post, path = "/v1/matchmaking/tickets", tag = "matchmaking", operation_id = "create_ticket",
    request_body = TicketRequest,
    responses(
        (status = 201, description = "A new ticket", body = TicketAnswer),
        (status = 200, description = "The existing ticket", body = TicketAnswer),
        (status = 400, description = "The queue or a search field is unknown"),
        (status = 409, description = "The player waits in another queue"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<TicketRequest>,
) -> Result<Response, Problem> {
    let TicketRequest { queue, numbers, strings, tags, replaces } = request;
    let join = JoinRequest { queue, numbers, strings, tags, replaces: replaced(replaces)? };
    joined(gateway.players.join(*caller.user().as_uuid(), join).await)
}

/// Reads the id of the ticket that a request to join replaces.
pub(super) fn replaced(text: Option<String>) -> Result<Option<TicketId>, Problem> {
    let invalid = || Problem::new(Code::InvalidArgument).detail("`replaces` is not the id of a ticket.");
    text.map(|text| TicketId::parse(&text).ok_or_else(invalid)).transpose()
}

pub(super) fn joined(joined: Result<JoinedTicket, Error>) -> Result<Response, Problem> {
    let JoinedTicket { ticket, is_new } = joined.map_err(|error| problem(&error))?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(TicketAnswer::of(ticket))).into_response())
}

/// List the caller's tickets
#[utoipa::path(
    get, path = "/v1/matchmaking/tickets", tag = "matchmaking", operation_id = "list_tickets",
    responses(
        (status = 200, description = "The tickets", body = TicketList),
        (status = 400, description = "The version of the client is not valid"),
    )
)]
pub(super) async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
) -> Result<Json<TicketList>, Problem> {
    let found = gateway.players.tickets(*caller.user().as_uuid()).await;
    let found = found.map_err(|error| problem(&error))?;
    Ok(Json(TicketList { tickets: found.into_iter().map(TicketAnswer::of).collect() }))
}

/// Get a ticket
#[utoipa::path(
    get, path = "/v1/matchmaking/tickets/{ticket_id}", tag = "matchmaking", operation_id = "get_ticket",
    params(("ticket_id" = String, Path)),
    responses(
        (status = 200, description = "The ticket", body = TicketAnswer),
        (status = 400, description = "The id is not valid"),
        (status = 404, description = "The caller has no such ticket"),
    )
)]
pub(super) async fn show(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<Json<TicketAnswer>, Problem> {
    let found = gateway.players.ticket(*caller.user().as_uuid(), &id).await;
    Ok(Json(TicketAnswer::of(found.map_err(|error| problem(&error))?)))
}

/// Cancel a ticket
///
/// Also succeeds for a ticket that is already gone.
#[utoipa::path(
    delete, path = "/v1/matchmaking/tickets/{ticket_id}", tag = "matchmaking", operation_id = "cancel_ticket",
    params(("ticket_id" = String, Path)),
    responses(
        (status = 204, description = "The ticket has left matchmaking"),
        (status = 400, description = "The id is not valid"),
        (status = 409, description = "Too late: the ticket is already assigned"),
    )
)]
pub(super) async fn cancel(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<StatusCode, Problem> {
    let left = gateway.players.leave(*caller.user().as_uuid(), &id).await;
    left.map_err(|error| problem(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Accept a match
///
/// For a ticket in the state READY_CHECK. The match is made when all its players have accepted. Repeating the request changes nothing.
#[utoipa::path(
    post, path = "/v1/matchmaking/tickets/{ticket_id}/accept", tag = "matchmaking", operation_id = "accept_match",
    params(("ticket_id" = String, Path)),
    responses(
        (status = 200, description = "The ticket", body = TicketAnswer),
        (status = 400, description = "The id is not valid"),
        (status = 404, description = "The caller has no such ticket"),
        (status = 409, description = "The ticket is in no ready check that can be answered (`no-ready-check`)"),
    )
)]
pub(super) async fn accept(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<Json<TicketAnswer>, Problem> {
    let accepted = gateway.players.accept(*caller.user().as_uuid(), &id).await;
    Ok(Json(TicketAnswer::of(accepted.map_err(|error| problem(&error))?)))
}

/// Decline a match
///
/// Cancels the ticket. The other players of the match keep their place in the queue. Repeating the request changes nothing.
#[utoipa::path(
    post, path = "/v1/matchmaking/tickets/{ticket_id}/decline", tag = "matchmaking", operation_id = "decline_match",
    params(("ticket_id" = String, Path)),
    responses(
        (status = 204, description = "The ticket has left matchmaking"),
        (status = 400, description = "The id is not valid"),
        (status = 404, description = "The caller has no such ticket"),
        (status = 409, description = "The ticket is in no ready check that can be answered (`no-ready-check`)"),
    )
)]
pub(super) async fn decline(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<StatusCode, Problem> {
    let declined = gateway.players.decline(*caller.user().as_uuid(), &id).await;
    declined.map_err(|error| problem(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the problem for a failed call of matchmaking. A refusal has a type of its own.
pub(super) fn problem(error: &Error) -> Problem {
    let problem = failed("matchmaking", error);
    match error {
        Error::NoReadyCheck(_) => problem.cause("no-ready-check"),
        Error::Party(refusal) => {
            let problem = problem.cause(refusal.cause());
            match refusal {
                Refusal::MemberWaitsElsewhere { user, queue, .. } => {
                    problem.with("user_id", user.to_string()).with("queue", queue.as_str())
                }
                _ => problem,
            }
        }
        _ => problem,
    }
}

impl TicketAnswer {
    pub(super) fn of(ticket: PlayerTicket) -> Self {
        let assignment = ticket.assignment.map(|assignment| AssignmentAnswer {
            connection: assignment.connection,
            extensions: assignment.extensions,
        });
        Self {
            ticket_id: ticket.id.to_string(),
            queue: ticket.queue,
            state: ticket.state.word(),
            created_at: ticket.created_at.to_rfc3339(),
            expires_at: ticket.expires_at.map(Timestamp::to_rfc3339),
            assignment,
            estimate: ticket
                .estimate
                .map(|estimate| EstimateAnswer { seconds: estimate.seconds, basis: estimate.basis.word() }),
            ready_check: ticket.ready_check.map(ReadyCheckAnswer::of),
            reason: ticket.reason.map(ReasonAnswer::of),
        }
    }
}

impl ReadyCheckAnswer {
    fn of(check: PlayerReadyCheck) -> Self {
        Self {
            expires_at: check.expires_at.to_rfc3339(),
            accepted: check.accepted,
            players: check.players,
            answer: check.has_accepted.then_some(ReadyAnswer::Accepted),
        }
    }
}

impl ReasonAnswer {
    const fn of(reason: TicketReason) -> Self {
        match reason {
            TicketReason::Cancelled => Self::Cancelled,
            TicketReason::Declined => Self::Declined,
            TicketReason::NoAnswer => Self::NoAnswer,
            TicketReason::Expired => Self::Expired,
            TicketReason::NotEveryoneAccepted => Self::NotEveryoneAccepted,
        }
    }
}

//! Matchmaking for players.

use std::collections::BTreeMap;

use ::http::StatusCode;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base::{Code, Timestamp};
use http_server::{Body, Problem};
use matchmaking::model::TicketId;
use matchmaking::{Join, PlayerTicket};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sessions::Caller;
use utoipa::ToSchema;

use super::{Segment, failed};
use crate::Gateway;

/// What a player asks for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"queue": "duel"}))]
pub(crate) struct TicketRequest {
    /// One of the queues that /v1/client-config lists.
    queue: String,
    /// Search fields that the queue lets players set.
    #[serde(default)]
    numbers: BTreeMap<String, f64>,
    #[serde(default)]
    strings: BTreeMap<String, String>,
    #[serde(default)]
    tags: Vec<String>,
    /// The assigned ticket that the player is done with. Without it, whoever asks soon after a match was found is told of
    /// that match again.
    #[serde(default)]
    replaces: Option<String>,
}

/// A ticket of the caller.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TicketAnswer {
    ticket_id: String,
    queue: String,
    /// WAITING, ASSIGNED, or GONE: cancelled or expired.
    state: &'static str,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
    /// Until when it waits; RFC 3339.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Where to play, once it is known.
    assignment: Option<AssignmentAnswer>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct AssignmentAnswer {
    /// The address of the game server.
    connection: String,
    /// What the assigner said beside that.
    #[schema(value_type = Object)]
    extensions: Map<String, Value>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicketList {
    /// Those that wait, and those that were assigned lately; the oldest first.
    pub(super) tickets: Vec<TicketAnswer>,
}

/// Ask for a match
///
/// A player has one ticket in a queue: asking again, from whichever device, returns the one that is there.
#[utoipa::path(
    post, path = "/v1/matchmaking/tickets", tag = "matchmaking", request_body = TicketRequest,
    responses(
        (status = 201, description = "A new ticket", body = TicketAnswer),
        (status = 200, description = "The ticket that is there already", body = TicketAnswer),
        (status = 400, description = "The queue or a field is not known"),
        (status = 409, description = "The player waits in another queue"),
        (status = 413, description = "The body is too large"),
        (status = 415, description = "The body is not JSON"),
    )
)]
pub(super) async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    Body(request): Body<TicketRequest>,
) -> Result<Response, Problem> {
    let TicketRequest { queue, numbers, strings, tags, replaces } = request;
    let unsound = || Problem::new(Code::InvalidArgument).detail("`replaces` is not the id of a ticket.");
    let replaces = replaces.map(|text| TicketId::parse(&text).ok_or_else(unsound)).transpose()?;
    let join = Join { queue, numbers, strings, tags, replaces };
    let joined = gateway.players.join(*caller.user().as_uuid(), join).await;
    let joined = joined.map_err(|error| failed("matchmaking", &error))?;
    let status = if joined.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(TicketAnswer::of(joined.ticket))).into_response())
}

/// The caller's tickets
#[utoipa::path(
    get, path = "/v1/matchmaking/tickets", tag = "matchmaking",
    responses(
        (status = 200, description = "The tickets", body = TicketList),
        (status = 400, description = "The version of the client cannot be read"),
    )
)]
pub(super) async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
) -> Result<Json<TicketList>, Problem> {
    let found = gateway.players.tickets(*caller.user().as_uuid()).await;
    let found = found.map_err(|error| failed("matchmaking", &error))?;
    Ok(Json(TicketList { tickets: found.into_iter().map(TicketAnswer::of).collect() }))
}

/// One of the caller's tickets
#[utoipa::path(
    get, path = "/v1/matchmaking/tickets/{ticket_id}", tag = "matchmaking", params(("ticket_id" = String, Path)),
    responses(
        (status = 200, description = "The ticket", body = TicketAnswer),
        (status = 400, description = "That is not the id of a ticket"),
        (status = 404, description = "The caller has no such ticket, or not any more"),
    )
)]
pub(super) async fn show(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<Json<TicketAnswer>, Problem> {
    let found = gateway.players.ticket(*caller.user().as_uuid(), &id).await;
    Ok(Json(TicketAnswer::of(found.map_err(|error| failed("matchmaking", &error))?)))
}

/// Take a ticket back
///
/// One that is gone already is as good as taken back.
#[utoipa::path(
    delete, path = "/v1/matchmaking/tickets/{ticket_id}", tag = "matchmaking", params(("ticket_id" = String, Path)),
    responses(
        (status = 204, description = "It takes no part any more"),
        (status = 400, description = "That is not the id of a ticket"),
        (status = 409, description = "Too late: a match has been found"),
    )
)]
pub(super) async fn cancel(
    State(gateway): State<Gateway>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<StatusCode, Problem> {
    let left = gateway.players.leave(*caller.user().as_uuid(), &id).await;
    left.map_err(|error| failed("matchmaking", &error))?;
    Ok(StatusCode::NO_CONTENT)
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
        }
    }
}

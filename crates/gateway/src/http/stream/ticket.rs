//! The stream of one ticket.

use std::pin::Pin;

use axum::extract::{Extension, State};
use axum::response::Response;
use base::error::chain;
use futures::{Stream, StreamExt};
use http_server::{Connection, Problem};
use matchmaking::{Error, PlayerTicket};
use sessions::Caller;
use utoipa::ToSchema;

use super::{End, Source, Step, open, respond, ticket_event};
use crate::Gateway;
use crate::clients::Client;
use crate::http::Segment;
use crate::http::tickets::problem;

/// An event of the stream.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "events are formatted by hand; this type is their schema")]
pub(crate) struct TicketEvent {
    event: TicketEventKind,
    /// JSON: the ticket as in other responses, or in `why` the reason of `reconnect` and `end`.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "events are formatted by hand; this type is their schema")]
pub(crate) enum TicketEventKind {
    Ticket,
    Reconnect,
    End,
}

/// Stream a ticket
///
/// Server-sent events: `ticket` at the start and after each change, `reconnect` when the process stops, `end` when no more events
/// follow. /v1/stream also contains all tickets.
#[utoipa::path(
    get, path = "/v1/matchmaking/tickets/{ticket_id}/stream", tag = "matchmaking", operation_id = "follow_ticket",
    params(("ticket_id" = String, Path)),
    responses(
        (status = 200, description = "A stream of events", content_type = "text/event-stream", body = TicketEvent),
        (status = 400, description = "The id is not valid"),
        (status = 404, description = "The caller has no such ticket"),
    )
)]
pub(in crate::http) async fn follow(
    State(gateway): State<Gateway>,
    Extension(connection): Extension<Connection>,
    Extension(client): Extension<Client>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<Response, Problem> {
    let open = match open(&gateway, &caller) {
        Ok(open) => open,
        Err(refused) => return Ok(*refused),
    };
    let tickets = gateway.players.watch(*caller.user().as_uuid(), &id, &connection).await;
    let tickets = tickets.map_err(|error| problem(&error))?;
    let source = TicketSource { gateway: gateway.clone(), client, tickets: Box::pin(tickets) };
    Ok(respond(gateway, caller, open, source))
}

/// Produces the events of one ticket.
struct TicketSource {
    gateway: Gateway,
    client: Client,
    tickets: Pin<Box<dyn Stream<Item = Result<PlayerTicket, Error>> + Send>>,
}

impl Source for TicketSource {
    async fn next(&mut self) -> Step {
        match self.tickets.next().await {
            Some(Ok(ticket)) => Step::Event(ticket_event(&self.gateway, &self.client, ticket)),
            Some(Err(error)) => watch_failed(&error),
            None => Step::End(End::TicketGone),
        }
    }
}

/// Returns the step of a stream whose tickets can no longer be watched.
pub(super) fn watch_failed(error: &Error) -> Step {
    if matches!(error, Error::Stopping) {
        return Step::Reconnect("this process stops");
    }
    tracing::warn!(outage = "tickets", cause = chain(error), "a stream can no longer watch its tickets");
    Step::Reconnect("tickets cannot be read at the moment")
}

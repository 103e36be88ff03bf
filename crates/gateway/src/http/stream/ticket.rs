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

use super::{Next, Source, answer, open, ticket_event};
use crate::Gateway;
use crate::clients::Client;
use crate::http::{Segment, failed};

/// One of the events of a stream.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is written by hand; this describes it")]
pub(crate) struct TicketEvent {
    event: TicketEventKind,
    /// JSON: the ticket, as it is answered elsewhere; or `why` there will be no more.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "it is written by hand; this describes it")]
pub(crate) enum TicketEventKind {
    Ticket,
    Reconnect,
    End,
}

/// Follow a ticket
///
/// Server-sent events: `ticket` now and at every change, `reconnect` when the process stops, `end` when nothing more will come. A
/// client that wants to hear of everything follows /v1/stream.
#[utoipa::path(
    get, path = "/v1/matchmaking/tickets/{ticket_id}/stream", tag = "matchmaking", params(("ticket_id" = String, Path)),
    responses(
        (status = 200, description = "Events, until the end", content_type = "text/event-stream", body = TicketEvent),
        (status = 400, description = "That is not the id of a ticket"),
        (status = 404, description = "The caller has no such ticket, or not any more"),
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
    let tickets = tickets.map_err(|error| failed("matchmaking", &error))?;
    let source = OneTicket { gateway: gateway.clone(), client, tickets: Box::pin(tickets) };
    Ok(answer(gateway, caller, open, source))
}

struct OneTicket {
    gateway: Gateway,
    client: Client,
    tickets: Pin<Box<dyn Stream<Item = Result<PlayerTicket, Error>> + Send>>,
}

impl Source for OneTicket {
    async fn next(&mut self) -> Next {
        match self.tickets.next().await {
            Some(Ok(ticket)) => Next::Event(ticket_event(&self.gateway, &self.client, ticket)),
            Some(Err(error)) => ended_early(&error),
            None => Next::End("the ticket is gone"),
        }
    }
}

/// What a stream says when its tickets cannot be watched any longer.
pub(super) fn ended_early(error: &Error) -> Next {
    if matches!(error, Error::Stopping) {
        return Next::Reconnect("this process stops");
    }
    tracing::warn!(outage = "tickets", cause = chain(error), "a stream ends early");
    Next::Reconnect("it cannot be told at the moment")
}

//! The stream of a ticket, as server-sent events.
//!
//! `ticket` has the ticket: at once, and whenever it changes. `reconnect` says that this process stops: connect again, and
//! another one goes on. `end` says that nothing more will come: the session has ended, the token has expired, the ticket is gone.
//! A comment every few seconds keeps proxies awake.

use std::pin::Pin;
use std::time::Duration;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderName, HeaderValue};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use base::{Code, Timestamp};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use matchmaking::{Error, PlayerTicket};
use runtime::http::{Connection, Problem};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use utoipa::ToSchema;

use super::tickets::TicketAnswer;
use super::{Segment, failed};
use crate::Gateway;
use crate::caller::{Caller, Proof};
use crate::streams::OpenStream;

/// How soon a client should connect again, in milliseconds: at least, and by how much more by chance, for those of a process that
/// stops should not all come at once.
const RETRY_MIN: u64 = 200;
const RETRY_SPREAD: u64 = 800;

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
/// Server-sent events: `ticket` now and at every change, `reconnect` when the process stops, `end` when nothing more will come.
#[utoipa::path(
    get, path = "/v1/matchmaking/tickets/{ticket_id}/stream", tag = "matchmaking", params(("ticket_id" = String, Path)),
    responses(
        (status = 200, description = "Events, until the end", content_type = "text/event-stream", body = TicketEvent),
        (status = 400, description = "That is not the id of a ticket"),
        (status = 404, description = "The caller has no such ticket, or not any more"),
    )
)]
pub(super) async fn follow(
    State(gateway): State<Gateway>,
    Extension(connection): Extension<Connection>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<Response, Problem> {
    let most = gateway.config.max_streams;
    let open = gateway.streams.open(caller.user(), caller.session(), most).ok_or_else(|| {
        Problem::new(Code::RateLimited).detail(format!("You have {most} streams open already: close some."))
    })?;
    let tickets = gateway.players.watch(*caller.user().as_uuid(), &id, &connection).await;
    let tickets = tickets.map_err(|error| failed("matchmaking", &error))?;
    let until = match &caller.proof {
        Proof::Token { expires_at } => Some(*expires_at),
        Proof::Session(..) => None,
    };
    let following = Following::new(gateway, caller, open, Box::pin(tickets), until);
    let events = following.events().map(Ok::<_, std::convert::Infallible>);
    let mut response = Body::from_stream(events).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies that gather answers before they pass them on are told not to.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

type Tickets = Pin<Box<dyn Stream<Item = Result<PlayerTicket, Error>> + Send>>;

struct Following {
    gateway: Gateway,
    caller: Caller,
    open: OpenStream,
    tickets: Tickets,
    heartbeat: Interval,
    /// When the token expires.
    expires: Option<Instant>,
    over: bool,
}

impl Following {
    fn new(
        gateway: Gateway,
        caller: Caller,
        open: OpenStream,
        tickets: Tickets,
        until: Option<Timestamp>,
    ) -> Self {
        let every = gateway.config.stream_heartbeat;
        let mut heartbeat = interval_at(Instant::now() + every, every);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let now = gateway.clock.now().as_millis();
        let left = |until: Timestamp| until.as_millis().saturating_sub(now).try_into().unwrap_or(0);
        let expires = until.map(|until| Instant::now() + Duration::from_millis(left(until)));
        Self { gateway, caller, open, tickets, heartbeat, expires, over: false }
    }

    fn events(self) -> impl Stream<Item = Bytes> + Send {
        let hello = Bytes::from(format!("retry: {}\n\n", RETRY_MIN + fastrand::u64(..RETRY_SPREAD)));
        let rest = futures::stream::unfold(self, |mut following| async move {
            if following.over {
                return None;
            }
            let event = following.next().await;
            Some((event, following))
        });
        futures::stream::iter([hello]).chain(rest)
    }

    async fn next(&mut self) -> Bytes {
        let expires = self.expires;
        let expired = async {
            match expires {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ticket = self.tickets.next() => match ticket {
                Some(Ok(ticket)) => event("ticket", &TicketAnswer::of(ticket)),
                Some(Err(Error::Stopping)) => self.last("reconnect", "this process stops"),
                Some(Err(error)) => {
                    tracing::warn!(cause = base::error::chain(&error), "a stream ends early");
                    self.last("reconnect", "it cannot be told at the moment")
                }
                None => self.last("end", "the ticket is gone"),
            },
            () = self.open.ended.cancelled() => self.last("end", "the session has ended"),
            () = expired => self.last("end", "the token has expired"),
            _ = self.heartbeat.tick() => {
                if is_still_welcome(&self.gateway, &self.caller).await {
                    Bytes::from_static(b":\n\n")
                } else {
                    self.last("end", "the session has ended")
                }
            },
        }
    }

    fn last(&mut self, name: &str, why: &str) -> Bytes {
        self.over = true;
        event(name, &serde_json::json!({ "why": why }))
    }
}

/// Looks now and then, in case the word that a session has ended was lost. While it cannot be told, the stream stays.
async fn is_still_welcome(gateway: &Gateway, caller: &Caller) -> bool {
    let (Proof::Session(id, _), Some(sign_ins)) = (&caller.proof, &gateway.sign_ins) else { return true };
    !matches!(sign_ins.keeper.current(id).await, Ok(None))
}

fn event(name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

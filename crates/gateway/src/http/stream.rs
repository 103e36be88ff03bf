//! The stream of a ticket, as server-sent events.
//!
//! `ticket` has the ticket: at once, and whenever it changes. `reconnect` says that this process stops: connect again, and
//! another one goes on. `end` says that nothing more will come: the session has ended, the token has expired, the ticket is gone.
//! A comment every few seconds keeps proxies awake.

use std::pin::Pin;
use std::time::Duration;

use ::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ::http::{HeaderName, HeaderValue};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use base::error::Coded;
use base::{Code, Timestamp};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use matchmaking::{Error, PlayerTicket};
use runtime::http::{Connection, Problem};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use utoipa::ToSchema;

use super::tickets::TicketAnswer;
use super::{Segment, TICKET, failed};
use crate::Gateway;
use crate::caller::{Caller, Proof};
use crate::clients::{self, Client};
use crate::streams::OpenStream;
use crate::users::Identity;

/// How soon a client should connect again, in milliseconds: at least, and by how much more by chance, for those of a process that
/// stops should not all come at once.
const RETRY_MIN: u64 = 200;
const RETRY_SPREAD: u64 = 800;
/// How long a look at whether a player is still welcome may take, for meanwhile nothing is told.
const LOOK: Duration = Duration::from_secs(1);

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
    Extension(client): Extension<Client>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<Response, Problem> {
    let most = gateway.config.max_streams;
    let Some(open) = gateway.streams.open(caller.user(), caller.session(), most) else {
        let detail = format!("You have {most} streams open already: close some.");
        return Ok(([(RETRY_AFTER, "1")], Problem::new(Code::RateLimited).detail(detail)).into_response());
    };
    let tickets = gateway.players.watch(*caller.user().as_uuid(), &id, &connection).await;
    let tickets = tickets.map_err(|error| failed("matchmaking", &error))?;
    let until = match &caller.proof {
        Proof::Token { expires_at } => Some(*expires_at),
        Proof::Session(..) => None,
    };
    let following = Following::new(gateway, (caller, client), open, Box::pin(tickets), until);
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
    client: Client,
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
        (caller, client): (Caller, Client),
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
        Self { gateway, caller, client, open, tickets, heartbeat, expires, over: false }
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
                Some(Ok(ticket)) => self.told(ticket),
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

    /// The ticket, without what this client does not see of one.
    fn told(&self, ticket: PlayerTicket) -> Bytes {
        let mut answer = serde_json::to_value(TicketAnswer::of(ticket)).unwrap_or_default();
        clients::hide(self.gateway.clients.hidden(&self.client, TICKET), &mut answer);
        event("ticket", &answer)
    }

    fn last(&mut self, name: &str, why: &str) -> Bytes {
        self.over = true;
        event(name, &serde_json::json!({ "why": why }))
    }
}

/// Looks now and then: somebody may have been banned, or the word that a session has ended was lost. While it cannot be told, or takes
/// long, the stream stays.
async fn is_still_welcome(gateway: &Gateway, caller: &Caller) -> bool {
    let looking = async {
        let session = match (&caller.proof, &gateway.sign_ins) {
            (Proof::Session(id, _), Some(sign_ins)) => sign_ins.keeper.current(id).await,
            _ => return gateway.users.know(&caller.identity).await,
        };
        match session {
            Ok(Some(session)) => gateway.users.know(&Identity::of(&session)).await,
            Ok(None) => Err(account::Error::UnknownIdentity),
            Err(_) => Ok(caller.known.clone()),
        }
    };
    let looked = tokio::time::timeout(LOOK, looking).await;
    !matches!(looked, Ok(Err(error)) if !error.is_passing())
}

fn event(name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

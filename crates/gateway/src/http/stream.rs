//! Streams: server-sent events.
//!
//! `reconnect` announces that this process stops: the client reconnects, and another process continues. `end` announces that no more
//! events follow, and carries a code that says why. A comment every few seconds keeps proxies from closing the connection.
//!
//! A long poll (`player::long_poll`) runs the same stream and collects its events for one response.

mod due_read;
mod player;
mod ticket;

use std::time::Duration;

use ::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ::http::{HeaderName, HeaderValue};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base::{Code, Timestamp};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http_server::{Connection, Problem};
use matchmaking::PlayerTicket;
use runtime::Drain;
use serde_json::json;
use sessions::{AccessLost, Caller, EndCause, Proof};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::parties::PartiesAnswer;
use super::tickets::TicketAnswer;
use super::{PARTIES, TICKET};
use crate::Gateway;
use crate::clients::{self, Client};
use crate::streams::OpenStream;

pub(super) use player::*;
pub(super) use ticket::*;

/// The shortest delay before a client reconnects, in milliseconds.
const RETRY_MIN: u64 = 200;
/// A random addition to the delay, so that the clients of a stopping process do not all reconnect at once.
const RETRY_SPREAD: u64 = 800;

/// The interval of heartbeats in milliseconds, in the head of each stream.
pub(crate) const HEARTBEAT: HeaderName = HeaderName::from_static("x-playhouse-heartbeat");

/// Produces the events of a stream.
trait Source: Send + 'static {
    /// Waits for the next step. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Step> + Send;

    /// Called at each heartbeat, to check for changes whose live message was lost.
    fn heartbeat(&mut self) {}
}

/// The next step of a stream.
enum Step {
    Event(Event),
    /// An event that a service has formatted.
    Formatted(Bytes),
    Heartbeat,
    /// Everything that was due has been sent. Clients do not see it.
    CaughtUp,
    /// Ask the client to reconnect, for this reason.
    Reconnect(&'static str),
    End(End),
}

/// An event for the client.
struct Event {
    name: &'static str,
    /// JSON.
    data: String,
    /// The position that a stream can resume after.
    position: Option<i64>,
}

impl Event {
    fn new(name: &'static str, data: &impl serde::Serialize) -> Self {
        Self { name, data: serde_json::to_string(data).unwrap_or_default(), position: None }
    }

    fn at(position: i64, name: &'static str, data: &impl serde::Serialize) -> Self {
        Self { position: Some(position), ..Self::new(name, data) }
    }

    fn format(&self) -> Bytes {
        let Self { name, data, position } = self;
        let id = position.map_or(String::new(), |position| format!("id: {position}\n"));
        Bytes::from(format!("{id}event: {name}\ndata: {data}\n\n"))
    }
}

/// Why a stream ends for good. The event `end` carries the code, so that a client knows what to do next.
#[derive(Clone, Copy)]
enum End {
    /// Get a new token, then connect again.
    TokenExpired,
    /// Sign in again.
    SignedOut,
    /// The same browser signed in again: connect again with the new session.
    Replaced,
    /// Do not connect again.
    Banned,
    /// The ticket of the stream no longer exists.
    TicketGone,
    /// The source has no more events, for example because a drop has ended.
    Finished,
}

impl End {
    const fn code(self) -> &'static str {
        match self {
            Self::TokenExpired => "token_expired",
            Self::SignedOut => "signed_out",
            Self::Replaced => "replaced",
            Self::Banned => "banned",
            Self::TicketGone => "ticket_gone",
            Self::Finished => "finished",
        }
    }

    /// For people.
    const fn why(self) -> &'static str {
        match self {
            Self::TokenExpired => "the token has expired",
            Self::SignedOut => "the session has ended",
            Self::Replaced => "the same browser signed in again",
            Self::Banned => "this account is banned",
            Self::TicketGone => "the ticket is gone",
            Self::Finished => "no more events",
        }
    }
}

impl From<AccessLost> for End {
    fn from(lost: AccessLost) -> Self {
        match lost {
            AccessLost::SignedOut => Self::SignedOut,
            AccessLost::Banned => Self::Banned,
        }
    }
}

/// Opens a stream of the caller. Returns the refusal if the caller has too many.
fn open(gateway: &Gateway, caller: &Caller) -> Result<OpenStream, Box<Response>> {
    let max = gateway.config.max_streams;
    gateway.streams.open(caller.user(), caller.session(), max).ok_or_else(|| {
        let open = base::counted(max, "stream");
        let detail = format!("You already have {open} open; close one first.");
        Box::new(([(RETRY_AFTER, "1")], Problem::new(Code::RateLimited).detail(detail)).into_response())
    })
}

/// Returns a response that streams the events of the source while the caller is signed in.
fn respond(gateway: Gateway, caller: Caller, open: OpenStream, source: impl Source) -> Response {
    let heartbeat = gateway.stream_heartbeat;
    let stream = EventStream::new(gateway, caller, open, source);
    let events = stream.events().map(Ok::<_, std::convert::Infallible>);
    let mut response = Body::from_stream(events).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Disables response buffering in proxies such as nginx.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    // Clients notice by it that a connection is dead.
    let heartbeat = u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX);
    headers.insert(HEARTBEAT, HeaderValue::from(heartbeat));
    response
}

/// Returns a response that streams the events of a service.
pub(crate) fn service_stream(
    gateway: &Gateway,
    caller: Caller,
    connection: &Connection,
    events: BoxStream<'static, Bytes>,
) -> Response {
    match open(gateway, &caller) {
        Ok(open) => {
            let source = ServiceEvents { events, drain: connection.drain().clone() };
            respond(gateway.clone(), caller, open, source)
        }
        Err(refused) => *refused,
    }
}

struct ServiceEvents {
    events: BoxStream<'static, Bytes>,
    drain: Drain,
}

impl Source for ServiceEvents {
    async fn next(&mut self) -> Step {
        tokio::select! {
            event = self.events.next() => event.map_or(Step::End(End::Finished), Step::Formatted),
            () = self.drain.requested() => Step::Reconnect("this process stops"),
        }
    }
}

/// Streams the events of a source, with heartbeats, while the caller is signed in.
struct EventStream<S> {
    gateway: Gateway,
    caller: Caller,
    open: OpenStream,
    source: S,
    heartbeat: Interval,
    /// When the token expires.
    expires: Option<Instant>,
    is_over: bool,
}

impl<S: Source> EventStream<S> {
    fn new(gateway: Gateway, caller: Caller, open: OpenStream, source: S) -> Self {
        let every = gateway.stream_heartbeat;
        let mut heartbeat = interval_at(Instant::now() + every, every);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let now = gateway.clock.now().as_millis();
        let left = |until: Timestamp| until.as_millis().saturating_sub(now).try_into().unwrap_or(0);
        let expires = match &caller.proof {
            Proof::Token { expires_at } => Some(Instant::now() + Duration::from_millis(left(*expires_at))),
            Proof::Session(..) => None,
        };
        Self { gateway, caller, open, source, heartbeat, expires, is_over: false }
    }

    fn events(self) -> impl Stream<Item = Bytes> + Send {
        let retry = Bytes::from(format!("retry: {}\n\n", RETRY_MIN + fastrand::u64(..RETRY_SPREAD)));
        let rest = futures::stream::unfold(self, |mut stream| async move {
            if stream.is_over {
                return None;
            }
            let event = stream.next().await;
            Some((event, stream))
        });
        futures::stream::iter([retry]).chain(rest)
    }

    async fn next(&mut self) -> Bytes {
        loop {
            match self.step().await {
                Step::Event(event) => return event.format(),
                Step::Formatted(event) => return event,
                Step::Heartbeat => return Bytes::from_static(b":\n\n"),
                Step::CaughtUp => {}
                Step::Reconnect(reason) => {
                    self.is_over = true;
                    return Event::new("reconnect", &json!({ "why": reason })).format();
                }
                Step::End(end) => {
                    self.is_over = true;
                    return Event::new("end", &json!({ "code": end.code(), "why": end.why() })).format();
                }
            }
        }
    }

    /// Waits for the next step of the source, the next heartbeat, or the end of the caller's access. A cancelled wait may skip a
    /// heartbeat and nothing else.
    async fn step(&mut self) -> Step {
        let expires = self.expires;
        let expired = async {
            match expires {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            step = self.source.next() => step,
            cause = self.open.ended.wait() => match cause {
                EndCause::Replaced => Step::End(End::Replaced),
                // A ban ends the sessions of the player too: the recheck knows which of the two happened.
                EndCause::Ended => match recheck(&self.gateway, &self.caller).await {
                    Err(lost) => Step::End(lost.into()),
                    Ok(()) => Step::End(End::SignedOut),
                },
            },
            () = expired => Step::End(End::TokenExpired),
            _ = self.heartbeat.tick() => match recheck(&self.gateway, &self.caller).await {
                Ok(()) => {
                    self.source.heartbeat();
                    Step::Heartbeat
                }
                Err(lost) => Step::End(lost.into()),
            },
        }
    }
}

/// Authenticates the caller again. Boxed because it is rare and large.
fn recheck<'a>(gateway: &'a Gateway, caller: &'a Caller) -> BoxFuture<'a, Result<(), AccessLost>> {
    Box::pin(gateway.sessions.recheck(caller))
}

/// Returns the event of a party, without the fields that the client does not see.
fn party_event(gateway: &Gateway, client: &Client, parties: &PartiesAnswer) -> Event {
    let mut document = serde_json::to_value(parties).unwrap_or_default();
    clients::hide(gateway.clients.hidden(client, PARTIES), &mut document);
    Event::new("party", &document)
}

/// Returns the event of a ticket, without the fields that the client does not see.
fn ticket_event(gateway: &Gateway, client: &Client, ticket: PlayerTicket) -> Event {
    let mut document = serde_json::to_value(TicketAnswer::of(ticket)).unwrap_or_default();
    clients::hide(gateway.clients.hidden(client, TICKET), &mut document);
    Event::new("ticket", &document)
}

//! Streams: server-sent events.
//!
//! `reconnect` says that this process stops: connect again, and another one goes on. `end` says that nothing more will come: the
//! session has ended, the token has expired, the ticket is gone. A comment every few seconds keeps proxies awake.

mod due;
mod player;
mod ticket;

use std::time::Duration;

use ::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ::http::{HeaderName, HeaderValue};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base::{Code, Timestamp};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http_server::{Connection, Problem};
use matchmaking::PlayerTicket;
use runtime::Drain;
use serde_json::json;
use sessions::{Caller, Proof};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::TICKET;
use super::tickets::TicketAnswer;
use crate::Gateway;
use crate::clients::{self, Client};
use crate::streams::OpenStream;

pub(super) use player::*;
pub(super) use ticket::*;

/// How soon a client should connect again, in milliseconds: at least, and by how much more by chance, for those of a process that
/// stops should not all come at once.
const RETRY_MIN: u64 = 200;
const RETRY_SPREAD: u64 = 800;

/// Where the events of a stream come from.
trait Source: Send + 'static {
    /// The next one. May be dropped and called again at any time.
    fn next(&mut self) -> impl Future<Output = Next> + Send;

    /// Notes that a heartbeat has passed: the time to look for what no live message announced.
    fn heartbeat(&mut self) {}
}

/// What is told next.
enum Next {
    Event(Bytes),
    /// Connect again, for this reason.
    Reconnect(&'static str),
    /// There will be no more, for this reason.
    End(&'static str),
}

/// Opens a stream of the caller's, unless they have too many.
fn open(gateway: &Gateway, caller: &Caller) -> Result<OpenStream, Box<Response>> {
    let most = gateway.config.max_streams;
    gateway.streams.open(caller.user(), caller.session(), most).ok_or_else(|| {
        let detail = format!("You have {most} streams open already: close some.");
        Box::new(([(RETRY_AFTER, "1")], Problem::new(Code::RateLimited).detail(detail)).into_response())
    })
}

/// The answer that tells what the source does, for as long as the caller is welcome.
fn answer(gateway: Gateway, caller: Caller, open: OpenStream, source: impl Source) -> Response {
    let following = Following::new(gateway, caller, open, source);
    let events = following.events().map(Ok::<_, std::convert::Infallible>);
    let mut response = Body::from_stream(events).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies that gather answers before they pass them on are told not to.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The answer that sends the events of a service.
pub(crate) fn brought_stream(
    gateway: &Gateway,
    caller: Caller,
    connection: &Connection,
    events: BoxStream<'static, Bytes>,
) -> Response {
    match open(gateway, &caller) {
        Ok(open) => {
            let source = BroughtEvents { events, drain: connection.drain().clone() };
            answer(gateway.clone(), caller, open, source)
        }
        Err(refused) => *refused,
    }
}

struct BroughtEvents {
    events: BoxStream<'static, Bytes>,
    drain: Drain,
}

impl Source for BroughtEvents {
    async fn next(&mut self) -> Next {
        tokio::select! {
            event = self.events.next() => event.map_or(Next::End("nothing more will come"), Next::Event),
            () = self.drain.requested() => Next::Reconnect("this process stops"),
        }
    }
}

struct Following<S> {
    gateway: Gateway,
    caller: Caller,
    open: OpenStream,
    source: S,
    heartbeat: Interval,
    /// When the token expires.
    expires: Option<Instant>,
    over: bool,
}

impl<S: Source> Following<S> {
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
        Self { gateway, caller, open, source, heartbeat, expires, over: false }
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
        let next = tokio::select! {
            next = self.source.next() => next,
            () = self.open.ended.cancelled() => Next::End("the session has ended"),
            () = expired => Next::End("the token has expired"),
            _ = self.heartbeat.tick() => {
                // Boxed, as it is rare and large.
                if Box::pin(self.gateway.sessions.is_still_signed_in(&self.caller)).await {
                    self.source.heartbeat();
                    Next::Event(Bytes::from_static(b":\n\n"))
                } else {
                    Next::End("the session has ended")
                }
            },
        };
        let mut last = |name, why| {
            self.over = true;
            event(name, &json!({ "why": why }))
        };
        match next {
            Next::Event(event) => event,
            Next::Reconnect(why) => last("reconnect", why),
            Next::End(why) => last("end", why),
        }
    }
}

/// A ticket, without what this client does not see of one.
fn ticket_event(gateway: &Gateway, client: &Client, ticket: PlayerTicket) -> Bytes {
    let mut answer = serde_json::to_value(TicketAnswer::of(ticket)).unwrap_or_default();
    clients::hide(gateway.clients.hidden(client, TICKET), &mut answer);
    event("ticket", &answer)
}

fn event(name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

/// An event from behind which a stream can go on.
fn event_at(position: i64, name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    Bytes::from(format!("id: {position}\nevent: {name}\ndata: {data}\n\n"))
}

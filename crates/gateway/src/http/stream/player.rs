//! The stream of a player: everything that concerns them.
//!
//! `ready` comes first. `notification` has one of the inbox, and its position there as `id`: a client that connects again with the last
//! id that it has (`Last-Event-ID`) gets what comes behind it, in order, without a gap and without a repeat, from whichever process.
//! `inbox` has the numbers of unread and unseen ones when the player changed them, or may have. `ticket` has a ticket: all of the
//! player's at the beginning, each again when it changes.
//!
//! The inbox is the source of truth: the stream knows the client's position and reads on from there. A live message with the next
//! notification saves it that read. So a client that reads slowly costs no memory here, and one that is cut off loses nothing.
//! After a gap in the live messages the stream reads everything again: the inbox, its counts and the tickets. A publisher may die
//! before it publishes: so at each heartbeat the inbox and the marks are compared (`notification::Watch`), and tickets looked up.

mod tickets;

use std::collections::VecDeque;
use std::sync::Arc;

use ::http::{HeaderMap, HeaderName};
use axum::extract::{Extension, State};
use axum::response::Response;
use base::Code;
use base::error::chain;
use base::id::Uuid;
use bytes::Bytes;
use futures::FutureExt;
use http_server::{Connection, Problem, Query};
use live::{Message, Player, Received, Subscription, Topics};
use matchmaking::{PlayerTicket, Present, TicketCreated};
use notification::{CountsChanged, Head, Notification, NotificationAdded};
use runtime::Drain;
use serde::Deserialize;
use serde_json::json;
use sessions::Caller;
use utoipa::{IntoParams, ToSchema};

use self::tickets::Tickets;
use super::due::Due;
use super::ticket::ended_early;
use super::{Next, Source, answer, event, event_at, open, ticket_event};
use crate::Gateway;
use crate::clients::Client;
use crate::http::failed;
use crate::http::notifications::{Languages, NotificationAnswer};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// How many notifications are read at once.
const PAGE: u32 = 100;

/// One of the events of a stream.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is written by hand; this describes it")]
pub(crate) struct PlayerEvent {
    /// Of `ready` and `notification`: where to go on from, as `Last-Event-ID`.
    id: Option<String>,
    event: PlayerEventKind,
    /// JSON: the notification or the ticket, as it is answered elsewhere; the counts; or `why` there will be no more.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "it is written by hand; this describes it")]
pub(crate) enum PlayerEventKind {
    Ready,
    Notification,
    Inbox,
    Ticket,
    Reconnect,
    End,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct StreamQuery {
    /// From behind which notification, where the header `Last-Event-ID` cannot be sent: what /v1/notifications tells as
    /// `last_event_id`. The header comes first.
    #[param(pattern = "^[0-9]{1,18}$")]
    last_event_id: Option<String>,
}

/// Follow everything
///
/// Server-sent events: `ready` first, `notification`, `inbox` (unread and unseen), `ticket`; `reconnect` when the process stops, `end`
/// when nothing more will come. With `Last-Event-ID` it goes on behind that notification; without, it begins with what comes next.
#[utoipa::path(
    get, path = "/v1/stream", tag = "player",
    params(StreamQuery, ("Last-Event-ID" = Option<String>, Header, description = "The last id that the client has.")),
    responses(
        (status = 200, description = "Events, until the end", content_type = "text/event-stream", body = PlayerEvent),
        (status = 400, description = "That is not the id of an event"),
    )
)]
pub(in crate::http) async fn stream(
    State(gateway): State<Gateway>,
    Extension(connection): Extension<Connection>,
    Extension(client): Extension<Client>,
    languages: Languages,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<StreamQuery>,
) -> Result<Response, Problem> {
    let open = match open(&gateway, &caller) {
        Ok(open) => open,
        Err(refused) => return Ok(*refused),
    };
    let user = *caller.user().as_uuid();
    let asked = position(&headers, query.last_event_id.as_deref())?;
    // In this order: a notification that is added after the head was read is received.
    let subscription = gateway.live.subscribe(Player(user)).await;
    let head = gateway.inbox.head(user).await.map_err(|error| failed("notifications", &error))?;
    let start = Start { user, subscription, asked, head };
    let source = Everything::new(gateway.clone(), client, languages, start, connection);
    Ok(answer(gateway, caller, open, source))
}

/// Where a client wants to go on from.
fn position(headers: &HeaderMap, query: Option<&str>) -> Result<Option<i64>, Problem> {
    let header = headers.get(LAST_EVENT_ID).map(|value| value.to_str().unwrap_or("?"));
    // A browser that has no id yet sends an empty one.
    let Some(text) = header.or(query).filter(|text| !text.is_empty()) else { return Ok(None) };
    let position = text.parse().ok().filter(|position| *position >= 0);
    position.map(Some).ok_or_else(|| {
        let detail = "Last-Event-ID must be an id that this stream has told, or the last_event_id of /v1/notifications.";
        Problem::new(Code::InvalidArgument).detail(detail)
    })
}

/// The live messages that a stream understands. Shared pointers keep the state of a stream small.
#[derive(Debug)]
enum PlayerMessage {
    Notification(Arc<Notification>),
    CountsChanged,
    TicketCreated,
}

impl Topics for PlayerMessage {
    type Key = Player;

    fn read(message: &Message<Player>) -> Option<Self> {
        let notification = || message.read::<NotificationAdded>().map(Self::Notification);
        let counts = || message.read::<CountsChanged>().map(|_| Self::CountsChanged);
        let ticket = || message.read::<TicketCreated>().map(|_| Self::TicketCreated);
        notification().or_else(counts).or_else(ticket)
    }
}

/// Where a stream starts.
struct Start {
    user: Uuid,
    subscription: Subscription<PlayerMessage>,
    /// The position that the client named, if it did.
    asked: Option<i64>,
    /// How far the player's inbox is.
    head: Head,
}

struct Everything {
    gateway: Gateway,
    client: Client,
    languages: Languages,
    user: Uuid,
    subscription: Subscription<PlayerMessage>,
    /// What is to be said first.
    greeting: Option<Bytes>,
    /// The position of the last notification that the client has.
    last: i64,
    /// How many of the player's marks the client's counts contain.
    marks: i64,
    /// What was read and is to be told, and up to where that leads.
    page: VecDeque<Notification>,
    page_end: i64,
    /// Whether the inbox may have notifications after that.
    inbox: Due,
    /// Whether the client may have old counts.
    counts: Due,
    tickets: Tickets,
    connection: Connection,
    _present: Present,
}

impl Everything {
    fn new(
        gateway: Gateway,
        client: Client,
        languages: Languages,
        start: Start,
        connection: Connection,
    ) -> Self {
        let Start { user, subscription, asked, head } = start;
        // An id that was never told is of another inbox, or of one that was restored: there is nothing to go on from.
        let last = asked.filter(|asked| *asked <= head.position).unwrap_or(head.position);
        let is_resumed = asked == Some(last);
        let greeting = json!({ "last_event_id": last.to_string(), "resumed": is_resumed });
        subscription.set_position(last + head.marks);
        Self {
            greeting: Some(event_at(last, "ready", &greeting)),
            inbox: if last < head.position { Due::now() } else { Due::default() },
            // A client that goes on keeps the counts that it had; they may have changed while it was cut off.
            counts: if is_resumed { Due::now() } else { Due::default() },
            last,
            marks: head.marks,
            page: VecDeque::new(),
            page_end: last,
            tickets: Tickets::new(gateway.clone(), user, connection.clone()),
            _present: gateway.players.present(user),
            gateway,
            client,
            languages,
            user,
            subscription,
            connection,
        }
    }

    fn drain(&self) -> Drain {
        self.connection.drain().clone()
    }

    /// Says how far the client is.
    fn at(&mut self, position: i64) {
        self.last = self.last.max(position);
        self.report();
    }

    /// Reports what the client knows, for the comparison with the inbox at each heartbeat.
    fn report(&self) {
        self.subscription.set_position(self.last + self.marks);
    }

    /// The next of what was read.
    fn next_of_page(&mut self) -> Option<Bytes> {
        let Some(notification) = self.page.pop_front() else {
            self.at(self.page_end);
            // A stream that is up to date keeps no room.
            self.page = VecDeque::new();
            return None;
        };
        Some(self.notification(&notification))
    }

    fn notification(&mut self, notification: &Notification) -> Bytes {
        self.at(notification.position);
        let answer = NotificationAnswer::of(notification, &self.languages);
        event_at(notification.position, "notification", &answer)
    }

    /// Reads the next notifications of the inbox. Cancel safe: it is due until it was read.
    async fn read(&mut self) {
        match self.gateway.inbox.after(self.user, self.last, PAGE).await {
            Ok(rest) => {
                self.inbox.begin();
                self.inbox.succeeded();
                if rest.more {
                    self.inbox.request();
                }
                (self.page, self.page_end) = (rest.notifications.into(), rest.up_to);
            }
            Err(error) => {
                tracing::warn!(outage = "inbox", cause = chain(&error), "a stream cannot read its inbox");
                self.inbox.failed();
            }
        }
    }

    /// Reads the counts of the inbox. Returns their event, or nothing if they cannot be read. Cancel safe, as [`read`](Self::read).
    async fn read_counts(&mut self) -> Option<Bytes> {
        match self.gateway.inbox.counts_and_marks(self.user).await {
            Ok((counts, marks)) => {
                self.counts.begin();
                self.counts.succeeded();
                self.marks = self.marks.max(marks);
                self.report();
                Some(event("inbox", &counts))
            }
            Err(error) => {
                tracing::warn!(
                    outage = "inbox",
                    cause = chain(&error),
                    "a stream cannot read the counts of its inbox"
                );
                self.counts.failed();
                None
            }
        }
    }

    /// Handles a live message. Returns the event that it makes for the client, if any.
    fn received(&mut self, received: Received<PlayerMessage>) -> Option<Bytes> {
        use PlayerMessage::{CountsChanged, Notification, TicketCreated};
        match received {
            Received::Gap => {
                self.inbox.request();
                self.counts.request();
                self.tickets.look();
                None
            }
            Received::Message(Notification(notification)) if notification.position <= self.last => None,
            Received::Message(Notification(notification)) if notification.position == self.last + 1 => {
                Some(self.notification(&notification))
            }
            // Notifications before it are missing.
            Received::Message(Notification(_)) => {
                self.inbox.request();
                None
            }
            // Its counts may be older than those of the message before: two processes publish after their commits, in any order.
            Received::Message(CountsChanged) => {
                self.counts.request();
                None
            }
            Received::Message(TicketCreated) => {
                self.tickets.look();
                None
            }
        }
    }

    fn ticket(&self, ticket: Result<PlayerTicket, matchmaking::Error>) -> Next {
        match ticket {
            Ok(ticket) => Next::Event(ticket_event(&self.gateway, &self.client, ticket)),
            Err(error) => ended_early(&error),
        }
    }
}

impl Source for Everything {
    fn heartbeat(&mut self) {
        if !self.gateway.players.queues().is_empty() {
            self.tickets.look();
        }
    }

    async fn next(&mut self) -> Next {
        if let Some(greeting) = self.greeting.take() {
            return Next::Event(greeting);
        }
        let drain = self.drain();
        loop {
            if let Some(event) = self.next_of_page() {
                return Next::Event(event);
            }
            // Boxed, as they are rare and large.
            if self.inbox.is_now() {
                self.read().boxed().await;
                continue;
            }
            if self.counts.is_now() {
                if let Some(event) = self.read_counts().boxed().await {
                    return Next::Event(event);
                }
                continue;
            }
            tokio::select! {
                received = self.subscription.next() => {
                    if let Some(event) = self.received(received) {
                        return Next::Event(event);
                    }
                }
                ticket = self.tickets.next() => return self.ticket(ticket),
                () = self.inbox.wait() => {}
                () = self.counts.wait() => {}
                () = drain.requested() => return Next::Reconnect("this process stops"),
            }
        }
    }
}

//! The stream of a player: notifications, inbox counts, tickets and the party.
//!
//! `ready` comes first. `notification` contains a notification, with its inbox position as `id`. A client that reconnects, to any
//! process, sends the last id that it has (`Last-Event-ID`) and receives all later notifications in order, without gaps or
//! duplicates. `inbox` contains the unread and unseen counts after the player may have changed them. `ticket` contains a ticket: at
//! the start all tickets of the player, then each ticket that changes. `party` contains the player's party and invitations: at the
//! start if there are any, then after each change.
//!
//! The inbox is the source of truth: the stream knows the client's position and reads the inbox from there. A live message with the
//! next notification saves that read. So a slow client costs no memory here, and a disconnected one misses nothing. After a gap in
//! the live messages the stream rereads the inbox, its counts, the tickets and the party. A publisher may die before it publishes, so at each
//! heartbeat the stream's position is compared with the inbox (`notification::StreamWatcher`), and the tickets and the party are
//! looked up.

mod long_poll;
mod party;
mod tickets;

use std::collections::VecDeque;
use std::sync::Arc;

use ::http::{HeaderMap, HeaderName};
use axum::extract::{Extension, State};
use axum::response::Response;
use base::Code;
use base::error::chain;
use base::id::Uuid;
use futures::FutureExt;
use http_server::{Connection, Problem, Query};
use live::{Message, Player, Subscription, SubscriptionEvent, Topics};
use matchmaking::{PartyChanged, PlayerTicket, PresenceGuard, TicketCreated};
use notification::{CountsChanged, Head, Notification, NotificationAdded};
use runtime::Drain;
use serde::Deserialize;
use serde_json::json;
use sessions::Caller;
use utoipa::{IntoParams, ToSchema};

use self::party::PartyReader;
use self::tickets::{TicketStep, Tickets};
use super::due_read::DueRead;
use super::ticket::watch_failed;
use super::{Event, Source, Step, open, party_event, respond, ticket_event};
use crate::Gateway;
use crate::clients::Client;
use crate::http::failed;
use crate::http::notifications::{Languages, NotificationAnswer};

pub(in crate::http) use long_poll::*;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The most notifications of one read.
const PAGE: u32 = 100;

/// An event of the stream.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "events are formatted by hand; this type is their schema")]
pub(crate) struct PlayerEvent {
    /// Only for `ready` and `notification`: the position to resume from, sent as `Last-Event-ID`.
    id: Option<String>,
    event: PlayerEventKind,
    /// JSON: the notification, ticket or party as in other responses, the counts, or in `why` the reason of `reconnect` and `end`.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "events are formatted by hand; this type is their schema")]
pub(crate) enum PlayerEventKind {
    Ready,
    Notification,
    Inbox,
    Ticket,
    Party,
    Reconnect,
    End,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct StreamQuery {
    /// The position to resume from, for clients that cannot send the header `Last-Event-ID`: the `last_event_id` of
    /// /v1/notifications. The header takes precedence.
    #[param(pattern = "^[0-9]{1,18}$")]
    last_event_id: Option<String>,
}

/// Stream the player's events
///
/// Server-sent events: first `ready`, then `notification`, `inbox` (unread and unseen counts), `ticket` and `party`; `reconnect`
/// when the process stops, `end` when no more events follow. With `Last-Event-ID` the stream resumes after that notification; otherwise it starts with
/// the next one. `resumed` of `ready` is false if no position was sent or it is no longer known: reload the list.
#[utoipa::path(
    get, path = "/v1/stream", tag = "player",
    params(StreamQuery, ("Last-Event-ID" = Option<String>, Header, description = "The last id that the client received")),
    responses(
        (status = 200, description = "A stream of events", content_type = "text/event-stream", body = PlayerEvent),
        (status = 400, description = "The id is not valid"),
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
    let requested = requested_position(&headers, query.last_event_id.as_deref())?;
    // Subscribes before it reads the head, so that no notification is missed in between.
    let subscription = gateway.live.subscribe(Player(user)).await;
    let head = gateway.inbox.head(user).await.map_err(|error| failed("notifications", &error))?;
    let start = Start { user, subscription, requested, head };
    let source = PlayerSource::new(gateway.clone(), client, languages, start, connection);
    Ok(respond(gateway, caller, open, source))
}

/// Returns the position that a client wants to resume from.
fn requested_position(headers: &HeaderMap, query: Option<&str>) -> Result<Option<i64>, Problem> {
    let header = headers.get(LAST_EVENT_ID).map(|value| value.to_str().unwrap_or("?"));
    parse_position("Last-Event-ID", header.or(query))
}

/// Parses a position, which the parameter `name` contains.
fn parse_position(name: &str, text: Option<&str>) -> Result<Option<i64>, Problem> {
    // A browser without an id sends an empty one.
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let position = text.parse().ok().filter(|position| *position >= 0);
    position.map(Some).ok_or_else(|| {
        let detail =
            format!("{name} must be an id of an event of /v1/stream, or the last_event_id of a response.");
        Problem::new(Code::InvalidArgument).detail(detail)
    })
}

/// The live messages that a stream handles. Shared pointers keep the state of a stream small.
#[derive(Debug)]
enum PlayerMessage {
    Notification(Arc<Notification>),
    CountsChanged,
    TicketCreated,
    PartyChanged,
}

impl Topics for PlayerMessage {
    type Key = Player;

    fn read(message: &Message<Player>) -> Option<Self> {
        let notification = || message.read::<NotificationAdded>().map(Self::Notification);
        let counts = || message.read::<CountsChanged>().map(|_| Self::CountsChanged);
        let ticket = || message.read::<TicketCreated>().map(|_| Self::TicketCreated);
        let party = || message.read::<PartyChanged>().map(|_| Self::PartyChanged);
        notification().or_else(counts).or_else(ticket).or_else(party)
    }
}

/// Where a stream starts.
struct Start {
    user: Uuid,
    subscription: Subscription<PlayerMessage>,
    /// The position that the client wants to resume from.
    requested: Option<i64>,
    /// The end of the player's inbox.
    head: Head,
}

/// Produces the events of a player's stream.
struct PlayerSource {
    gateway: Gateway,
    client: Client,
    languages: Languages,
    user: Uuid,
    subscription: Subscription<PlayerMessage>,
    /// The `ready` event, until it is sent.
    ready: Option<Event>,
    /// The position of the last notification that the client has.
    last: i64,
    /// The number of marks that the client's counts include.
    marks: i64,
    /// Notifications that were read and not sent yet.
    page: VecDeque<Notification>,
    /// The position that the client has once the page is sent.
    page_end: i64,
    /// Due if the inbox may have notifications after the page.
    inbox: DueRead,
    /// Due if the client's counts may be outdated.
    counts: DueRead,
    tickets: Tickets,
    party: PartyReader,
    /// Whether nothing was due when the source last waited, and nothing was sent since.
    is_caught_up: bool,
    connection: Connection,
    _present: PresenceGuard,
}

impl PlayerSource {
    fn new(
        gateway: Gateway,
        client: Client,
        languages: Languages,
        start: Start,
        connection: Connection,
    ) -> Self {
        let Start { user, subscription, requested, head } = start;
        // A position after the head belongs to another inbox, or to a time before a restore: the stream cannot resume from it.
        let last = requested.filter(|requested| *requested <= head.position).unwrap_or(head.position);
        let is_resumed = requested == Some(last);
        let ready = json!({ "last_event_id": last.to_string(), "resumed": is_resumed });
        subscription.set_position(last + head.marks);
        Self {
            ready: Some(Event::at(last, "ready", &ready)),
            inbox: if last < head.position { DueRead::now() } else { DueRead::default() },
            // A client that resumes keeps its counts, which may have changed while it was disconnected.
            counts: if is_resumed { DueRead::now() } else { DueRead::default() },
            last,
            marks: head.marks,
            page: VecDeque::new(),
            page_end: last,
            tickets: Tickets::new(gateway.clone(), user, connection.clone()),
            party: PartyReader::new(gateway.clone(), user),
            is_caught_up: false,
            _present: gateway.players.mark_present(user),
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

    /// Advances the position of the client.
    fn advance(&mut self, position: i64) {
        self.last = self.last.max(position);
        self.report_position();
    }

    /// Reports the client's position, which is compared with the inbox at each heartbeat.
    fn report_position(&self) {
        self.subscription.set_position(self.last + self.marks);
    }

    /// Returns the next notification of the page.
    fn next_of_page(&mut self) -> Option<Event> {
        let Some(notification) = self.page.pop_front() else {
            self.advance(self.page_end);
            // Frees the memory of an idle stream.
            self.page = VecDeque::new();
            return None;
        };
        Some(self.notification(&notification))
    }

    fn notification(&mut self, notification: &Notification) -> Event {
        self.advance(notification.position);
        let document = NotificationAnswer::of(notification, &self.languages);
        Event::at(notification.position, "notification", &document)
    }

    /// Reads the next page of the inbox. Cancel safe: the read stays due until it is done.
    async fn read_page(&mut self) {
        match self.gateway.inbox.after(self.user, self.last, PAGE).await {
            Ok(tail) => {
                self.inbox.begin();
                self.inbox.succeeded();
                if tail.has_more {
                    self.inbox.request();
                }
                (self.page, self.page_end) = (tail.notifications.into(), tail.up_to);
            }
            Err(error) => {
                tracing::warn!(outage = "inbox", cause = chain(&error), "a stream cannot read the inbox");
                self.inbox.failed();
            }
        }
    }

    /// Reads the counts of the inbox. Returns their event, or none if the read fails. Cancel safe, like
    /// [`read_page`](Self::read_page).
    async fn read_counts(&mut self) -> Option<Event> {
        match self.gateway.inbox.counts_and_marks(self.user).await {
            Ok((counts, marks)) => {
                self.counts.begin();
                self.counts.succeeded();
                self.marks = self.marks.max(marks);
                self.report_position();
                Some(Event::new("inbox", &counts))
            }
            Err(error) => {
                tracing::warn!(
                    outage = "inbox",
                    cause = chain(&error),
                    "a stream cannot read the counts of the inbox"
                );
                self.counts.failed();
                None
            }
        }
    }

    /// Handles a live message. Returns the event for the client, if there is one.
    fn handle(&mut self, received: SubscriptionEvent<PlayerMessage>) -> Option<Event> {
        use PlayerMessage::{CountsChanged, Notification, PartyChanged, TicketCreated};
        match received {
            SubscriptionEvent::Gap => {
                self.inbox.request();
                self.counts.request();
                self.tickets.request_lookup();
                self.party.request();
                None
            }
            SubscriptionEvent::Message(Notification(notification)) if notification.position <= self.last => {
                None
            }
            SubscriptionEvent::Message(Notification(notification))
                if notification.position == self.last + 1 =>
            {
                Some(self.notification(&notification))
            }
            // Earlier notifications are missing.
            SubscriptionEvent::Message(Notification(_)) => {
                self.inbox.request();
                None
            }
            // The counts are reread, because messages of two processes may arrive in another order than their commits.
            SubscriptionEvent::Message(CountsChanged) => {
                self.counts.request();
                None
            }
            SubscriptionEvent::Message(PartyChanged) => {
                self.party.request();
                None
            }
            SubscriptionEvent::Message(TicketCreated) => {
                self.tickets.request_lookup();
                None
            }
        }
    }

    fn ticket(&mut self, ticket: Result<PlayerTicket, matchmaking::Error>) -> Step {
        match ticket {
            Ok(ticket) => {
                self.party.ticket_changed(ticket.id.as_str());
                Step::Event(ticket_event(&self.gateway, &self.client, ticket))
            }
            Err(error) => watch_failed(&error),
        }
    }

    /// Returns whether the client has everything that there is.
    fn is_settled(&self) -> bool {
        !self.inbox.is_requested()
            && !self.counts.is_requested()
            && self.tickets.is_settled()
            && self.party.is_settled()
    }

    async fn step(&mut self) -> Step {
        if let Some(ready) = self.ready.take() {
            return Step::Event(ready);
        }
        let drain = self.drain();
        loop {
            if let Some(event) = self.next_of_page() {
                return Step::Event(event);
            }
            // The reads are boxed because they are rare and large.
            if self.inbox.is_now() {
                self.read_page().boxed().await;
                continue;
            }
            if self.counts.is_now() {
                if let Some(event) = self.read_counts().boxed().await {
                    return Step::Event(event);
                }
                continue;
            }
            if !self.is_caught_up && self.is_settled() {
                return Step::CaughtUp;
            }
            tokio::select! {
                received = self.subscription.next() => {
                    if let Some(event) = self.handle(received) {
                        return Step::Event(event);
                    }
                }
                step = self.tickets.next() => match step {
                    TicketStep::Changed(ticket) => return self.ticket(ticket),
                    TicketStep::LookedUp => {}
                },
                party = self.party.next() => {
                    if let Some(party) = party {
                        return Step::Event(party_event(&self.gateway, &self.client, &party));
                    }
                }
                () = self.inbox.wait() => {}
                () = self.counts.wait() => {}
                () = drain.requested() => return Step::Reconnect("this process stops"),
            }
        }
    }
}

impl Source for PlayerSource {
    fn heartbeat(&mut self) {
        if !self.gateway.players.queues().is_empty() {
            self.tickets.request_lookup();
            self.party.request();
        }
    }

    async fn next(&mut self) -> Step {
        let step = self.step().await;
        self.is_caught_up = !matches!(step, Step::Event(_));
        step
    }
}

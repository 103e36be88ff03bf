//! The player's stream as a long poll, for clients that cannot receive server-sent events.
//!
//! A request runs the stream of a player until it has something that the client lacks: a notification after the client's position, or
//! other counts or tickets than those whose digest the client sent. It answers early if the process stops or the caller's access ends;
//! the next request then reaches another process, or is refused like any other.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use base::Code;
use http_server::{Connection, Problem, Query};
use live::Player;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sessions::Caller;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};
use utoipa::{IntoParams, ToSchema};

use super::{PAGE, PlayerSource, Start, parse_position};
use crate::Gateway;
use crate::clients::Client;
use crate::http::failed;
use crate::http::notifications::{CountsAnswer, Languages, NotificationAnswer};
use crate::http::parties::PartiesAnswer;
use crate::http::stream::{Event, EventStream, Step, open};
use crate::http::tickets::TicketAnswer;

/// The longest wait.
pub(in crate::http) const MAX_WAIT: Duration = Duration::from_secs(30);
/// The bytes of a digest. Two states with the same one would delay an update; they do not lose one.
const DIGEST: usize = 12;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct EventsQuery {
    /// The position of the last notification that the client has: the `last_event_id` of the previous response or of
    /// /v1/notifications.
    #[param(pattern = "^[0-9]{1,18}$")]
    after: Option<String>,
    /// The `seen` of the previous response. Without it the response is immediate.
    #[param(max_length = 64)]
    seen: Option<String>,
    /// How many seconds to wait for a change, up to 30. Without it the response is immediate.
    #[param(minimum = 0, maximum = 30)]
    wait: Option<u64>,
}

/// What happened after the client's position, and the current counts and tickets.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventsAnswer {
    /// Send it as `after` of the next request.
    last_event_id: String,
    /// False if no position was sent or it is no longer known: reload the list.
    resumed: bool,
    /// The notifications after the position, in order; up to 100. The next request returns further ones at once.
    #[schema(value_type = Vec<NotificationAnswer>)]
    notifications: Vec<Value>,
    /// The counts now. Missing if they could not be read in time.
    #[schema(value_type = Option<CountsAnswer>)]
    inbox: Option<Value>,
    /// All tickets now, sorted by age, the oldest first. Missing if they could not be read in time.
    #[schema(value_type = Option<Vec<TicketAnswer>>)]
    tickets: Option<Vec<Value>>,
    /// The party and the invitations now, if there are any.
    #[schema(value_type = Option<PartiesAnswer>)]
    party: Option<Value>,
    /// A digest of the counts, the tickets and the party. Send it with the next request.
    seen: String,
}

/// Wait for the player's events
///
/// The long poll for clients that cannot receive /v1/stream. The response comes as soon as there is a notification after `after`, or
/// the counts or tickets differ from `seen`, or after the wait. It may come earlier without a change: send the next request.
#[utoipa::path(
    get, path = "/v1/events", tag = "player", params(EventsQuery),
    responses(
        (status = 200, description = "The events, and the current counts and tickets", body = EventsAnswer),
        (status = 400, description = "The position is not valid, or `wait` is more than 30"),
    )
)]
pub(in crate::http) async fn events(
    State(gateway): State<Gateway>,
    Extension(connection): Extension<Connection>,
    Extension(client): Extension<Client>,
    languages: Languages,
    caller: Caller,
    Query(query): Query<EventsQuery>,
) -> Result<Response, Problem> {
    let wait = Duration::from_secs(query.wait.unwrap_or(0));
    if wait > MAX_WAIT {
        let detail = format!("`wait` must be 0 to {} seconds.", MAX_WAIT.as_secs());
        return Err(Problem::new(Code::InvalidArgument).detail(detail));
    }
    let requested = parse_position("`after`", query.after.as_deref())?;
    let open = match open(&gateway, &caller) {
        Ok(open) => open,
        Err(refused) => return Ok(*refused),
    };
    let user = *caller.user().as_uuid();
    let subscription = gateway.live.subscribe(Player(user)).await;
    let head = gateway.inbox.head(user).await.map_err(|error| failed("notifications", &error))?;
    let start = Start { user, subscription, requested, head };
    let mut source = PlayerSource::new(gateway.clone(), client, languages, start, connection);
    source.counts.request();
    let settle = gateway.config.part_timeout;
    let stream = EventStream::new(gateway, caller, open, source);
    let answer = LongPoll::new(stream, query.seen).run(settle, wait).await;
    Ok(Json(answer).into_response())
}

/// Collects the events of a stream for one response.
struct LongPoll {
    stream: EventStream<PlayerSource>,
    /// The digest of the counts and tickets that the client has.
    client_has: String,
    is_resumed: bool,
    notifications: Vec<Value>,
    counts: Option<Value>,
    party: Option<Value>,
    /// By creation time and id.
    tickets: BTreeMap<(String, String), Value>,
    /// Whether the client gets the tickets: they were all read at least once.
    has_tickets: bool,
}

impl LongPoll {
    fn new(stream: EventStream<PlayerSource>, seen: Option<String>) -> Self {
        Self {
            stream,
            client_has: seen.unwrap_or_default(),
            is_resumed: false,
            notifications: Vec::new(),
            counts: None,
            party: None,
            tickets: BTreeMap::new(),
            has_tickets: false,
        }
    }

    /// Collects until there is something to send and nothing more is due, or until the wait is over. A store that does not answer
    /// within `settle` delays nothing longer than that.
    async fn run(mut self, settle: Duration, wait: Duration) -> EventsAnswer {
        let wait_until = Instant::now() + wait;
        let mut deadline = Instant::now() + settle;
        loop {
            let Ok(step) = timeout_at(deadline, self.stream.step()).await else {
                if self.has_news() || deadline >= wait_until {
                    return self.answer();
                }
                deadline = wait_until;
                continue;
            };
            match step {
                Step::Event(event) => {
                    self.collect(&event);
                    deadline = Instant::now() + settle;
                }
                Step::CaughtUp => {
                    self.has_tickets = true;
                    if self.has_news() {
                        return self.answer();
                    }
                    deadline = wait_until;
                }
                Step::Heartbeat | Step::Formatted(_) => {}
                Step::Reconnect(_) | Step::End(_) => return self.answer(),
            }
            if self.notifications.len() >= PAGE as usize {
                return self.answer();
            }
        }
    }

    fn collect(&mut self, event: &Event) {
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name {
            "ready" => self.is_resumed = data["resumed"] == true,
            "notification" => {
                self.notifications.push(data);
                // The counts include it.
                self.stream.source.counts.request();
            }
            "inbox" => self.counts = Some(data),
            "party" => {
                let is_none = data["party"].is_null() && data["invitations"] == json!([]);
                self.party = (!is_none).then_some(data);
            }
            _ => {
                let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
                let key = (text("created_at"), text("ticket_id"));
                if data["state"] == "GONE" {
                    self.tickets.remove(&key);
                } else {
                    self.tickets.insert(key, data);
                }
            }
        }
    }

    /// Returns whether the client lacks something.
    fn has_news(&self) -> bool {
        !self.is_resumed || !self.notifications.is_empty() || self.digest() != self.client_has
    }

    /// Returns the digest of the counts and tickets. The client's own if they are not known.
    fn digest(&self) -> String {
        let Some(counts) = self.counts.as_ref().filter(|_| self.has_tickets) else {
            return self.client_has.clone();
        };
        let mut hash = Sha256::new().chain_update(counts.to_string());
        for ticket in self.tickets.values() {
            hash.update(ticket.to_string());
        }
        if let Some(party) = &self.party {
            hash.update(party.to_string());
        }
        hash.finalize().iter().take(DIGEST).map(|byte| format!("{byte:02x}")).collect()
    }

    fn answer(self) -> EventsAnswer {
        EventsAnswer {
            last_event_id: self.stream.source.last.to_string(),
            resumed: self.is_resumed,
            seen: self.digest(),
            notifications: self.notifications,
            inbox: self.counts,
            party: self.party,
            tickets: self.has_tickets.then(|| self.tickets.into_values().collect()),
        }
    }
}

//! The tickets in a player's stream.
//!
//! Matchmaking has its own store. While that is unreachable, the lookup is retried and the rest of the stream continues.

use std::collections::{HashMap, HashSet};

use base::error::chain;
use base::id::Uuid;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use http_server::Connection;
use matchmaking::model::TicketId;
use matchmaking::{PlayerState, PlayerTicket};

use crate::Gateway;
use crate::http::stream::due_read::DueRead;

/// Finds the tickets of a player and watches each of them.
pub(super) struct Tickets {
    gateway: Gateway,
    user: Uuid,
    connection: Connection,
    changes: SelectAll<TicketChanges>,
    /// The watched tickets, and whether each has been reported.
    watched: HashMap<TicketId, bool>,
    /// Due if the player may have tickets that are not watched yet.
    lookup: DueRead,
    /// The lookup in progress.
    running_lookup: Option<BoxFuture<'static, Lookup>>,
}

/// What [`Tickets::next`] waited for.
pub(super) enum TicketStep {
    /// A new ticket, or a change of a ticket.
    Changed(Result<PlayerTicket, matchmaking::Error>),
    /// A lookup has finished. The tickets that it found follow.
    LookedUp,
}

/// The current state of a ticket, followed by each change.
type TicketChanges = BoxStream<'static, Result<PlayerTicket, matchmaking::Error>>;

/// The result of a lookup.
struct Lookup {
    tickets: Vec<(TicketId, TicketChanges)>,
    /// Whether every query succeeded.
    is_complete: bool,
}

impl Tickets {
    pub(super) fn new(gateway: Gateway, user: Uuid, connection: Connection) -> Self {
        Self {
            gateway,
            user,
            connection,
            changes: SelectAll::new(),
            watched: HashMap::new(),
            lookup: DueRead::now(),
            running_lookup: None,
        }
    }

    /// Requests a lookup of tickets that are not watched yet.
    pub(super) fn request_lookup(&mut self) {
        self.lookup.request();
    }

    /// Returns whether all tickets of the player are known and reported.
    pub(super) fn is_settled(&self) -> bool {
        !self.lookup.is_requested()
            && self.running_lookup.is_none()
            && self.watched.values().all(|reported| *reported)
    }

    /// Waits for the next new ticket, the next change of a ticket, or the end of a lookup. Cancel safe.
    pub(super) async fn next(&mut self) -> TicketStep {
        loop {
            if self.running_lookup.is_none() && self.lookup.is_now() {
                self.lookup.begin();
                let (gateway, connection) = (self.gateway.clone(), self.connection.clone());
                let watched = self.watched.keys().cloned().collect();
                self.running_lookup = Some(look_up(gateway, self.user, connection, watched).boxed());
            }
            let is_running = self.running_lookup.is_some();
            tokio::select! {
                lookup = finished(&mut self.running_lookup) => {
                    self.add(lookup);
                    return TicketStep::LookedUp;
                }
                Some(change) = self.changes.next(), if !self.changes.is_empty() => {
                    match &change {
                        Ok(ticket) if ticket.state == PlayerState::Gone => {
                            self.watched.remove(&ticket.id);
                        }
                        Ok(ticket) => {
                            self.watched.insert(ticket.id.clone(), true);
                        }
                        Err(_) => {}
                    }
                    return TicketStep::Changed(change);
                }
                () = self.lookup.wait(), if !is_running => {}
            }
        }
    }

    fn add(&mut self, lookup: Lookup) {
        self.running_lookup = None;
        for (id, changes) in lookup.tickets {
            self.watched.insert(id, false);
            self.changes.push(changes);
        }
        if lookup.is_complete {
            self.lookup.succeeded();
        } else {
            self.lookup.failed();
        }
    }
}

/// Finds the player's tickets that are not watched yet, and watches them.
async fn look_up(gateway: Gateway, user: Uuid, connection: Connection, watched: HashSet<TicketId>) -> Lookup {
    let mut lookup = Lookup { tickets: Vec::new(), is_complete: true };
    let tickets = gateway.players.tickets(user).await.unwrap_or_else(|error| {
        tracing::warn!(
            outage = "tickets",
            cause = chain(&error),
            "a stream cannot read the player's tickets"
        );
        lookup.is_complete = false;
        Vec::new()
    });
    for ticket in tickets.into_iter().filter(|ticket| !watched.contains(&ticket.id)) {
        match gateway.players.watch(user, ticket.id.as_str(), &connection).await {
            Ok(changes) => lookup.tickets.push((ticket.id, changes.boxed())),
            // The ticket is already gone.
            Err(matchmaking::Error::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(outage = "tickets", cause = chain(&error), "a stream cannot watch a ticket");
                lookup.is_complete = false;
            }
        }
    }
    lookup
}

/// Waits for the result of a lookup. Waits forever if there is none. Cancel safe.
async fn finished(lookup: &mut Option<BoxFuture<'static, Lookup>>) -> Lookup {
    match lookup {
        Some(lookup) => lookup.await,
        None => std::future::pending().await,
    }
}

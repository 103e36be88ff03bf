//! The tickets of a stream's player.
//!
//! Matchmaking has a store of its own. While it is away the lookup is retried, and the rest of the stream goes on.

use std::collections::HashSet;

use base::error::chain;
use base::id::Uuid;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use http_server::Connection;
use matchmaking::model::TicketId;
use matchmaking::{PlayerState, PlayerTicket};

use crate::Gateway;
use crate::http::stream::due::Due;

/// Finds the tickets of a player and watches each of them.
pub(super) struct Tickets {
    gateway: Gateway,
    user: Uuid,
    connection: Connection,
    changes: SelectAll<Changes>,
    watched: HashSet<TicketId>,
    /// Whether the player may have tickets that are not watched yet.
    lookup: Due,
    /// The lookup while it lasts.
    finding: Option<BoxFuture<'static, Found>>,
}

/// A ticket as it is, and then as it becomes.
type Changes = BoxStream<'static, Result<PlayerTicket, matchmaking::Error>>;

/// What a lookup found.
struct Found {
    tickets: Vec<(TicketId, Changes)>,
    /// Whether the store answered every question.
    is_complete: bool,
}

impl Tickets {
    pub(super) fn new(gateway: Gateway, user: Uuid, connection: Connection) -> Self {
        Self {
            gateway,
            user,
            connection,
            changes: SelectAll::new(),
            watched: HashSet::new(),
            lookup: Due::now(),
            finding: None,
        }
    }

    /// Looks for tickets that are not watched yet.
    pub(super) fn look(&mut self) {
        self.lookup.request();
    }

    /// Waits for the next ticket, or the next change of one. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<PlayerTicket, matchmaking::Error> {
        loop {
            if self.finding.is_none() && self.lookup.is_now() {
                self.lookup.begin();
                let (gateway, connection) = (self.gateway.clone(), self.connection.clone());
                self.finding = Some(find(gateway, self.user, connection, self.watched.clone()).boxed());
            }
            let is_finding = self.finding.is_some();
            tokio::select! {
                found = found(&mut self.finding) => self.add(found),
                Some(change) = self.changes.next(), if !self.changes.is_empty() => {
                    if let Ok(ticket) = &change
                        && ticket.state == PlayerState::Gone
                    {
                        self.watched.remove(&ticket.id);
                    }
                    return change;
                }
                () = self.lookup.wait(), if !is_finding => {}
            }
        }
    }

    fn add(&mut self, found: Found) {
        self.finding = None;
        for (id, changes) in found.tickets {
            self.watched.insert(id);
            self.changes.push(changes);
        }
        if found.is_complete {
            self.lookup.succeeded();
        } else {
            self.lookup.failed();
        }
    }
}

/// Finds the player's tickets that are not watched yet, and watches them.
async fn find(gateway: Gateway, user: Uuid, connection: Connection, watched: HashSet<TicketId>) -> Found {
    let mut found = Found { tickets: Vec::new(), is_complete: true };
    let tickets = gateway.players.tickets(user).await.unwrap_or_else(|error| {
        tracing::warn!(
            outage = "tickets",
            cause = chain(&error),
            "a stream cannot read its player's tickets"
        );
        found.is_complete = false;
        Vec::new()
    });
    for ticket in tickets.into_iter().filter(|ticket| !watched.contains(&ticket.id)) {
        match gateway.players.watch(user, ticket.id.as_str(), &connection).await {
            Ok(changes) => found.tickets.push((ticket.id, changes.boxed())),
            // It is gone already.
            Err(matchmaking::Error::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(outage = "tickets", cause = chain(&error), "a stream cannot watch a ticket");
                found.is_complete = false;
            }
        }
    }
    found
}

/// Waits for the end of a lookup. Waits for ever if there is none. Cancel safe.
async fn found(finding: &mut Option<BoxFuture<'static, Found>>) -> Found {
    match finding {
        Some(finding) => finding.await,
        None => std::future::pending().await,
    }
}

//! The party in a player's stream.
//!
//! Parties are in the store of tickets. While that is unreachable, the read is retried and the rest of the stream continues.

use base::error::chain;
use base::id::Uuid;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::Gateway;
use crate::http::parties::PartiesAnswer;
use crate::http::stream::due_read::DueRead;

/// Reads the party and the invitations of a player when they may have changed.
pub(super) struct PartyReader {
    gateway: Gateway,
    user: Uuid,
    /// What the client has. A client starts with no party and no invitation.
    sent: Box<PartiesAnswer>,
    /// Due if the client's party may be outdated.
    due: DueRead,
    running: Option<BoxFuture<'static, Result<PartiesAnswer, matchmaking::Error>>>,
}

impl PartyReader {
    pub(super) fn new(gateway: Gateway, user: Uuid) -> Self {
        let has_queues = !gateway.players.queues().is_empty();
        let due = if has_queues { DueRead::now() } else { DueRead::default() };
        Self { gateway, user, sent: Box::default(), due, running: None }
    }

    /// Requests a read.
    pub(super) fn request(&mut self) {
        self.due.request();
    }

    /// Requests a read if this is the ticket of the party: the party is then no longer queued, or just was.
    pub(super) fn ticket_changed(&mut self, ticket_id: &str) {
        if self.sent.ticket_id() == Some(ticket_id) {
            self.due.request();
        }
    }

    /// Returns whether the client has the party as it is.
    pub(super) fn is_settled(&self) -> bool {
        !self.due.is_requested() && self.running.is_none()
    }

    /// Waits for a read. Returns the party and the invitations if they changed. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<PartiesAnswer> {
        loop {
            if self.running.is_none() && self.due.is_now() {
                self.due.begin();
                let (gateway, user) = (self.gateway.clone(), self.user);
                self.running = Some(async move { PartiesAnswer::read(&gateway, user).await }.boxed());
            }
            let Some(running) = &mut self.running else {
                self.due.wait().await;
                continue;
            };
            let read = running.await;
            self.running = None;
            match read {
                Ok(found) => {
                    self.due.succeeded();
                    if found == *self.sent {
                        return None;
                    }
                    *self.sent = found.clone();
                    return Some(found);
                }
                Err(error) => {
                    tracing::warn!(
                        outage = "tickets",
                        cause = chain(&error),
                        "a stream cannot read the player's party"
                    );
                    self.due.failed();
                }
            }
        }
    }
}

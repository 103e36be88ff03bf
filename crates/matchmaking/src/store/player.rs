//! The tickets of players: what the store knows of them beside the tickets themselves.
//!
//! Which tickets a player has is derived. A ticket that was cancelled or has expired simply no longer counts, and so does an
//! assigned one that can no longer be read. What keeps "one ticket per player" true is that joining is one step.

use std::collections::BTreeMap;
use std::time::Duration;

use base::id::Uuid;

use super::{Found, NewTicket};
use crate::model::TicketId;

/// A player who wants to wait in a queue.
#[derive(Clone, Debug)]
pub struct Claim {
    pub user: Uuid,
    pub queue: String,
    /// The ticket to be made, if there is none yet.
    pub ticket: NewTicket,
    /// The queues beside which the player may wait in this one.
    pub beside: Vec<String>,
    /// An assigned ticket that the player is done with.
    pub replaces: Option<TicketId>,
    /// After which time without a stream the ticket is cancelled.
    pub cancel_when_gone: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The player's ticket in this queue: the new one, or the one that was there.
    Ticket { id: TicketId, found: Found },
    /// The player waits in a queue beside which this one is not allowed. Nothing was made.
    Elsewhere { queue: String, id: TicketId },
}

/// The queues that cancel the tickets of players who are gone, each with the time after which it does.
pub type GoneAfter = BTreeMap<String, Duration>;

//! The tickets of players: what the store keeps about them in addition to the tickets.
//!
//! A player's list of tickets is derived data. A cancelled or expired ticket no longer counts, nor does an assigned one
//! that can no longer be read. "One ticket per player" holds because joining is a single atomic step.

use std::collections::BTreeMap;
use std::time::Duration;

use base::id::Uuid;

use super::{NewTicket, StoredTicket};
use crate::model::TicketId;

/// A ticket to create for a player, unless the player already has one in the queue.
#[derive(Clone, Debug)]
pub struct NewPlayerTicket {
    pub user: Uuid,
    pub queue: String,
    /// The ticket to create if there is none.
    pub ticket: NewTicket,
    /// The other queues in which the player may wait at the same time.
    pub allowed_queues: Vec<String>,
    /// An assigned ticket that the player no longer needs.
    pub replaces: Option<TicketId>,
    /// How long the player may be without a stream before the ticket is cancelled.
    pub cancel_when_gone: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinOutcome {
    /// The player's ticket in this queue, new or existing.
    Ticket { id: TicketId, found: StoredTicket },
    /// The player waits in a queue that does not allow this one. Nothing was created.
    OtherQueue { queue: String, id: TicketId },
}

/// The queues that cancel the tickets of absent players, each with its timeout.
pub type AbsenceTimeouts = BTreeMap<String, Duration>;

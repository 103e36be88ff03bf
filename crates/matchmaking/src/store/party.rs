//! Parties: what the store keeps about them, and the one step that changes them.
//!
//! The store does not read the document of a party. It compares versions, and keeps which user is in which party.

use std::time::Duration;

use base::id::Uuid;
use bytes::Bytes;

use super::{NewTicket, StoredTicket};
use crate::model::{PartyId, TicketId};

/// A party as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredParty {
    /// Increases with each change. The first one is 1.
    pub version: u64,
    /// The encoded party.
    pub data: Bytes,
}

/// The parties of a user. Derived data: a party counts only while its document names the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    pub party: Option<PartyId>,
    /// The parties that invite the user.
    pub invitations: Vec<PartyId>,
}

/// A change of a party. It is applied as a whole or not at all.
#[derive(Clone, Debug)]
pub struct PartyChange {
    pub id: PartyId,
    /// The version that the change is based on. 0 creates the party.
    pub version: u64,
    /// The party after the change. `None` removes it.
    pub data: Option<Bytes>,
    /// How long the party lives without another change.
    pub ttl: Duration,
    /// Everyone who is in the party after the change.
    pub members: Vec<Uuid>,
    /// Users who were in the party before the change.
    pub left: Vec<Uuid>,
    /// Users with an invitation after the change.
    pub invited: Vec<Uuid>,
    /// Users who had an invitation before the change.
    pub uninvited: Vec<Uuid>,
    pub code: String,
    /// The join code before the change.
    pub old_code: String,
    /// The ticket that the party has queued with last.
    pub ticket: Option<TicketId>,
    pub step: TicketStep,
}

/// What a change does with the ticket of the party.
#[derive(Clone, Debug)]
pub enum TicketStep {
    Keep,
    /// Refuses the change if the ticket waits.
    RequireIdle,
    /// Cancels the ticket if it waits.
    Cancel,
    Create(NewPartyTicket),
}

/// A ticket to create for all members of a party, unless one of them waits already.
#[derive(Clone, Debug)]
pub struct NewPartyTicket {
    pub queue: String,
    pub ticket: NewTicket,
    /// The other queues in which a member may wait at the same time.
    pub allowed_queues: Vec<String>,
    /// The assigned ticket that the party no longer needs.
    pub replaces: Option<TicketId>,
    /// How long a member may be without a stream before the ticket is cancelled.
    pub cancel_when_gone: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartyOutcome {
    Changed,
    /// The party has another version. Nothing was changed, as in all outcomes below.
    Stale,
    /// Another party has this join code.
    CodeTaken,
    /// This user is in another party.
    InAnotherParty {
        user: Uuid,
        party: PartyId,
    },
    /// The ticket of the party waits.
    Queued,
    /// The party has queued here before, and the ticket waits or its match can still be read.
    Ticket {
        id: TicketId,
        found: StoredTicket,
    },
    /// This member waits with another ticket.
    MemberWaits {
        user: Uuid,
        queue: String,
        ticket: TicketId,
    },
}

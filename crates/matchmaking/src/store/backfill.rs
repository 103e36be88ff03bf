//! Backfills: what the store keeps about them.
//!
//! A backfill and its tickets are in one place, and each change is one step. A ticket belongs to a backfill only while
//! it is pending under the claim with which it was added, so a ticket that was released or claimed elsewhere has left
//! the backfill without a write to it.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Timestamp;
use bytes::Bytes;

use super::{Room, Rules, Seat, UnrecordedBatch};
use crate::model::{BackfillId, TicketId};

/// The data of a backfill: encoded parts of an Open Match `Backfill`, each replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackfillData {
    pub generation: i64,
    /// Id and creation time.
    pub fixed: Bytes,
    /// Search fields and extensions.
    pub fields: Bytes,
    pub persistent: Bytes,
    /// The match under way, if a rule set fills it.
    pub room: Option<Box<Room>>,
}

/// A backfill to create. Its generation is 1.
#[derive(Clone, Debug)]
pub struct NewBackfill {
    pub id: BackfillId,
    pub fixed: Bytes,
    pub fields: Bytes,
    pub persistent: Bytes,
}

/// What claiming a match does to a backfill.
#[derive(Clone, Debug)]
pub enum BackfillChange {
    Create(NewBackfill),
    /// Replaces search fields and extensions of a backfill that still has this generation.
    Update {
        id: BackfillId,
        generation: i64,
        fields: Bytes,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateBackfillOutcome {
    /// The backfill as it is now, without its fields and persistent data.
    Updated(BackfillData),
    NotFound,
    Expired,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcknowledgeOutcome {
    Acknowledged(AcknowledgedBackfill),
    NotFound,
    Expired,
}

/// A backfill whose game server is alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcknowledgedBackfill {
    pub data: BackfillData,
    /// The tickets to assign, oldest first if their ids sort by age.
    pub waiting: Vec<TicketId>,
    /// Their seats, if a rule set fills the backfill.
    pub seats: BTreeMap<TicketId, Seat>,
    /// The assigned tickets that no answer has listed yet, because an earlier call was interrupted.
    pub unlisted: Vec<TicketId>,
}

#[derive(Clone, Debug)]
pub enum AssignBackfillOutcome {
    /// The tickets are assigned. Their players are not notified yet.
    Assigned(UnrecordedBatch),
    /// These tickets have left the backfill. Nothing was assigned.
    Refused(Vec<TicketId>),
}

/// What a step of the clean-up did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiredBackfills {
    /// How many backfills were deleted.
    pub backfills: usize,
    /// How many tickets became active again.
    pub tickets: usize,
    /// Whether there may be more to delete.
    pub has_more: bool,
    /// How many backfills are left.
    pub left: u64,
}

/// A backfill, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackfillStatus {
    pub data: BackfillData,
    pub acknowledged_at: Option<Timestamp>,
    pub is_expired: bool,
    /// The tickets that wait for the game server.
    pub waiting: Vec<TicketId>,
}

impl BackfillChange {
    pub const fn id(&self) -> &BackfillId {
        match self {
            Self::Create(NewBackfill { id, .. }) | Self::Update { id, .. } => id,
        }
    }
}

impl Rules {
    /// Returns after how long without an acknowledgement a backfill expires: before its tickets become active again,
    /// so that a game server that is alive always finds them pending.
    pub fn backfill_expiry(&self) -> Duration {
        self.pending_timeout / 5 * 4
    }

    /// Returns how long an unused backfill stays in Redis if no process cleans up: longer than any of its tickets can
    /// be pending.
    pub(super) fn backfill_ttl(&self) -> Duration {
        self.pending_timeout * 2
    }
}

//! The domain types of a drop, and the rules that need no store.

mod controller;
mod place;
mod state;
mod stats;
mod stored;
mod terms;
mod text;

use account::{AccountId, UserId};
use base::Timestamp;

pub use self::stats::CycleStats;
pub use place::{Lane, LineMember, Phase, Place, Seed};
pub use state::{DropAction, DropState, EndReason, EntryState, LeftReason};
pub use terms::{
    AdmissionTerms, Audience, LineOrder, MAX_BATCH, MAX_LANES, Mistake, Mistakes, Price, Terms, WhenSoldOut,
    WithoutRedis,
};

pub(crate) use controller::Cohort;
pub(crate) use terms::MAX_RESOURCE;
pub(crate) use text::check as check_text;

use crate::{AdmissionId, DropId};

/// A drop as it is stored.
#[derive(Clone, Debug)]
pub struct DropRecord {
    pub id: DropId,
    /// Unique among all drops.
    pub name: String,
    pub state: DropState,
    /// What a unit is: the resource that the buyer's account is granted.
    pub resource: String,
    pub opens_at: Option<Timestamp>,
    pub closes_at: Option<Timestamp>,
    /// When it was actually opened.
    pub opened_at: Option<Timestamp>,
    /// When it was actually closed or cancelled.
    pub closed_at: Option<Timestamp>,
    /// Why the drop ended. None until it has.
    pub end_reason: Option<EndReason>,
    pub created_at: Timestamp,
    /// Incremented with every change.
    pub version: i64,
    pub terms: Terms,
    /// Secret until the opening: see [`published_seed`](Self::published_seed).
    pub(crate) seed: Seed,
    /// The emergency switch: while it is on, no player is admitted.
    pub everyone_waits: bool,
}

impl DropRecord {
    /// Returns the SHA-256 of the shuffle's seed in hex. It is public from the beginning.
    pub fn seed_hash(&self) -> String {
        self.seed.hash()
    }

    /// Returns the shuffle's seed once the drop has been opened.
    pub fn published_seed(&self) -> Option<Seed> {
        self.opened_at.map(|_| self.seed.clone())
    }

    /// Computes the place in the line of the join with this number.
    pub(crate) fn place_of(&self, user: UserId, lane: Lane, number: i64) -> Place {
        let is_before_opening = self.opened_at.is_none();
        match self.terms.order {
            LineOrder::Shuffle if is_before_opening => {
                Place::new(lane, Phase::Shuffled, self.seed.value_of(user))
            }
            LineOrder::Shuffle | LineOrder::FirstCome => {
                Place::new(lane, Phase::Numbered, number.unsigned_abs())
            }
        }
    }
}

/// A player's entry in the line of a drop. It stays after the player was admitted or left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineEntry {
    pub user: UserId,
    pub account: AccountId,
    pub state: EntryState,
    /// Why the player left. None unless the state is LEFT.
    pub left_reason: Option<LeftReason>,
    /// The number of the join: a join that commits later has a higher one.
    pub number: i64,
    pub place: Place,
    pub joined_at: Timestamp,
    /// The id that the admission has, or will have. It is generated at the join.
    pub admission: AdmissionId,
    pub entered_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    /// When the admission was first used.
    pub arrived_at: Option<Timestamp>,
}

impl LineEntry {
    /// Returns whether the player waits or is inside at `now`. A join then changes nothing.
    ///
    /// An expired admission does not count, even if no cycle has marked it yet.
    pub fn is_present(&self, now: Timestamp) -> bool {
        match self.state {
            EntryState::Waiting => true,
            EntryState::Entered => !self.has_ended(now),
            EntryState::Left | EntryState::Expired => false,
        }
    }

    /// Returns whether this is an expired admission that no cycle has marked yet.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        self.state == EntryState::Entered && self.expires_at.is_none_or(|expires_at| expires_at <= now)
    }

    /// Returns the player with their place in the line.
    pub const fn line_member(&self) -> LineMember {
        LineMember { place: self.place, user: self.user }
    }
}

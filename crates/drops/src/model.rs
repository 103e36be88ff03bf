//! What a drop is, and the rules that need no store.

mod controller;
mod measured;
mod place;
mod state;
mod stored;
mod terms;
mod text;

use account::{AccountId, UserId};
use base::Timestamp;

pub use self::measured::Measured;
pub use place::{Lane, Phase, Place, Seed, Spot};
pub use state::{Change, DropState, EndReason, EntryState, LeftReason};
pub use terms::{
    AdmissionTerms, MAX_BATCH, MAX_LANES, Mistake, Mistakes, Order, Price, Terms, WhenSoldOut, Who,
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
    /// When it was really opened.
    pub opened_at: Option<Timestamp>,
    /// When it was really closed or cancelled.
    pub closed_at: Option<Timestamp>,
    /// Why it is over. None until it is.
    pub end_reason: Option<EndReason>,
    pub created_at: Timestamp,
    /// Counts up by one with every change.
    pub version: i64,
    pub terms: Terms,
    /// Secret until the opening: see [`published_seed`](Self::published_seed).
    pub(crate) seed: Seed,
    /// The emergency switch: nobody is admitted while it is on.
    pub everyone_waits: bool,
}

impl DropRecord {
    /// Returns the SHA-256 of the shuffle's seed in hexadecimal digits. It is public from the beginning.
    pub fn seed_hash(&self) -> String {
        self.seed.hash()
    }

    /// Returns the shuffle's seed once the drop has been opened.
    pub fn published_seed(&self) -> Option<Seed> {
        self.opened_at.map(|_| self.seed.clone())
    }

    /// Returns the place of a join with this number.
    pub(crate) fn place_of(&self, user: UserId, lane: Lane, number: i64) -> Place {
        let is_before_opening = self.opened_at.is_none();
        match self.terms.order {
            Order::Shuffle if is_before_opening => {
                Place::new(lane, Phase::Shuffled, self.seed.value_of(user))
            }
            Order::Shuffle | Order::FirstCome => Place::new(lane, Phase::Numbered, number.unsigned_abs()),
        }
    }
}

/// A player's entry in a drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub user: UserId,
    pub account: AccountId,
    pub state: EntryState,
    /// Why the player left. None unless the state is LEFT.
    pub left_reason: Option<LeftReason>,
    /// Of the join: a join that commits later has a higher number.
    pub number: i64,
    pub place: Place,
    pub joined_at: Timestamp,
    /// The id of the admission, once there is one.
    pub admission: AdmissionId,
    pub entered_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    /// When the admission was first used.
    pub arrived_at: Option<Timestamp>,
}

impl Entry {
    /// Returns whether the player waits or is inside at this time: a join changes nothing then.
    ///
    /// An admission whose time has ended does not count, even if no cycle has marked it yet.
    pub fn is_present(&self, now: Timestamp) -> bool {
        match self.state {
            EntryState::Waiting => true,
            EntryState::Entered => !self.has_ended(now),
            EntryState::Left | EntryState::Expired => false,
        }
    }

    /// Returns whether this is an admission whose time has ended and which no cycle has marked yet.
    pub(crate) fn has_ended(&self, now: Timestamp) -> bool {
        self.state == EntryState::Entered && self.expires_at.is_none_or(|expires_at| expires_at <= now)
    }

    /// Returns where the entry stands in the line.
    pub const fn spot(&self) -> Spot {
        Spot { place: self.place, user: self.user }
    }
}

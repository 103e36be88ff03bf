//! What a drop is, and the rules that need no store.

mod controller;
mod measured;
mod place;
mod state;
mod terms;

use account::{AccountId, UserId};
use base::Timestamp;

pub use self::measured::Measured;
pub use place::{Lane, Phase, Place, Seed, Spot};
pub use state::{Change, DropState, EntryState};
pub use terms::{
    AdmissionTerms, MAX_BATCH, MAX_LANES, Mistake, Mistakes, Order, Price, Terms, Who, WithoutRedis,
};

pub(crate) use controller::Cohort;

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
    /// Returns where the entry stands in the line.
    pub const fn spot(&self) -> Spot {
        Spot { place: self.place, user: self.user }
    }
}

//! An item of work.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// An item to push.
#[derive(Clone, Debug)]
pub struct NewItem<'a> {
    /// The permanent, unique id of the item. Pushing the same id twice violates a constraint.
    pub id: Uuid,
    /// The user the item belongs to. A sharded database stores the item with the other rows of this user.
    pub user: Uuid,
    /// Items with the same key are handled in the order of their pushes, unless the queue is unordered. At most 600
    /// characters.
    pub key: &'a str,
    pub payload: &'a [u8],
}

/// A claimed item.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its number in the queue. 0 if it was claimed at its push, because the store assigns the number later.
    pub number: i64,
    pub id: Uuid,
    pub user: Uuid,
    pub key: String,
    pub payload: Vec<u8>,
    /// How often it has been claimed, including this claim.
    pub attempts: u32,
    pub created: Timestamp,
    /// Its age at the time of the claim, by the store's clock.
    pub(crate) age: Duration,
    pub(crate) claimed: Instant,
    /// The fencing number, raised by every claim. A worker with an older number has lost the item.
    pub(crate) lease: i64,
    pub(crate) key_hash: i64,
}

impl Item {
    pub(crate) const NO_NUMBER: i64 = 0;

    /// Returns whether an attempt at this item may have run at least `ago` in the past: by an earlier holder, or by this one.
    pub fn attempt_may_be_older_than(&self, ago: Duration) -> bool {
        let held = self.claimed.elapsed();
        self.age.saturating_add(held) >= ago && (self.lease > 1 || held >= ago)
    }
}

/// The outcome of one attempt at an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    Done,
    /// The attempt failed and may succeed later.
    Retry(String),
    /// As [`Retry`](Self::Retry), but not before `after` has passed, because the destination asked for that.
    RetryAfter {
        after: Duration,
        cause: String,
    },
    /// The item can never succeed.
    Failed(String),
    /// The item could not be attempted for a reason outside of it, such as an outage. The attempt does not count.
    NotAttempted(String),
    /// As [`NotAttempted`](Self::NotAttempted), and an attempt is pointless before `after` has passed.
    Postponed {
        after: Duration,
        cause: String,
    },
    /// The item is replaced by these items in one transaction. Items whose id is already in the queue stay unchanged.
    Split(Vec<SplitItem>),
}

/// An item that takes the place of a larger one. It inherits that item's user, lease number and age, because an earlier attempt at
/// the larger item may have handled it already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SplitItem {
    pub id: Uuid,
    pub key: String,
    pub payload: Vec<u8>,
    /// Whether this part of the work is done. It is then stored as a done item, and no worker claims it.
    pub is_done: bool,
}

/// The state of an item, as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Waiting for a worker, or for the next attempt.
    Pending,
    /// Claimed by a worker.
    InFlight,
    Done,
    /// Out of attempts, or cannot succeed. In an ordered queue it blocks its key.
    Failed,
    /// Skipped by an operator.
    Skipped,
    /// Stopped by an operator until it is resumed.
    Held,
}

/// The values of the column `state`. An open item is pending or in flight.
pub(crate) const OPEN: i32 = 0;
pub(crate) const DONE: i32 = 1;
pub(crate) const FAILED: i32 = 2;
pub(crate) const SKIPPED: i32 = 3;
pub(crate) const HELD: i32 = 4;

impl State {
    /// Returns the word that operators see. A service with other words for its states maps them itself.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::InFlight => "IN_FLIGHT",
            Self::Done => "DONE",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIPPED",
            Self::Held => "HELD",
        }
    }

    pub(crate) const fn from_columns(state: i32, is_claimed: bool) -> Self {
        match (state, is_claimed) {
            (OPEN, false) => Self::Pending,
            (OPEN, true) => Self::InFlight,
            (DONE, _) => Self::Done,
            (SKIPPED, _) => Self::Skipped,
            (HELD, _) => Self::Held,
            _ => Self::Failed,
        }
    }
}

/// Returns the hash that the index stores for a key. Keys with the same hash are ordered together, which does no harm.
pub(crate) fn key_hash(key: &str) -> i64 {
    let digest: [u8; 32] = Sha256::digest(key).into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Reads an id from its column.
pub(crate) fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}

//! An item of work.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// An item that is to be pushed.
#[derive(Clone, Debug)]
pub struct New<'a> {
    /// A name of its own that the item keeps for ever. The same one cannot be pushed twice.
    pub id: Uuid,
    /// Whose it is: a database in several pieces keeps it beside their other rows.
    pub user: Uuid,
    /// Items of the same key are done in the order in which they were pushed, unless the queue is without order. At most 600
    /// characters.
    pub key: &'a str,
    pub payload: &'a [u8],
}

/// An item that is claimed.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its number in the queue; not known of one that was claimed with its push.
    pub number: i64,
    pub id: Uuid,
    pub user: Uuid,
    pub key: String,
    pub payload: Vec<u8>,
    /// How often it has been claimed, this time included.
    pub attempts: u32,
    pub created: Timestamp,
    /// How old it was when it was claimed, by the store's clock.
    pub(crate) age: Duration,
    pub(crate) claimed: Instant,
    /// Raised by every claim: whoever has another number has lost the item.
    pub(crate) lease: i64,
    pub(crate) key_hash: i64,
}

impl Item {
    pub(crate) const NO_NUMBER: i64 = 0;

    /// Whether it may have been done so long ago: by somebody who claimed it before us, or since we have it.
    pub fn may_have_been_done(&self, ago: Duration) -> bool {
        let held = self.claimed.elapsed();
        self.age.saturating_add(held) >= ago && (self.lease > 1 || held >= ago)
    }
}

/// What became of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It failed, and may succeed later.
    Again(String),
    /// As [`Again`](Self::Again), and not before this time has passed: whoever it is for asks for that.
    AgainAfter {
        after: Duration,
        cause: String,
    },
    /// It can never succeed.
    Failed(String),
    /// It was not its fault that nothing was done: the attempt does not count.
    NotTried(String),
    /// As [`NotTried`](Self::NotTried), and it is known for how long there is no use in trying.
    Later {
        after: Duration,
        cause: String,
    },
    /// It is replaced by these items, in one transaction. Those that are in the queue already stay as they are.
    Split(Vec<Part>),
}

/// An item that takes the place of another one. It keeps that item's user, and counts as claimed when that item was: a worker may
/// have done it before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub id: Uuid,
    pub key: String,
    pub payload: Vec<u8>,
    /// Whether this part of the work is done. It is kept as a done item, and no worker gets it.
    pub is_done: bool,
}

/// The state of an item as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Waits for a worker, or for its next attempt.
    Pending,
    /// A worker has it.
    InFlight,
    Done,
    /// Attempts are used up, or it can never succeed. Where there is an order, its key waits.
    Failed,
    /// Given up by an operator.
    Skipped,
    /// Stopped by an operator, until they resume it.
    Held,
}

/// The values of the column `state`. An item that is open is pending or in flight.
pub(crate) const OPEN: i32 = 0;
pub(crate) const DONE: i32 = 1;
pub(crate) const FAILED: i32 = 2;
pub(crate) const SKIPPED: i32 = 3;
pub(crate) const HELD: i32 = 4;

impl State {
    /// The state in a word, for operators. A queue whose users know a state by another word says so itself.
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

    pub(crate) const fn of(state: i32, is_held: bool) -> Self {
        match (state, is_held) {
            (OPEN, false) => Self::Pending,
            (OPEN, true) => Self::InFlight,
            (DONE, _) => Self::Done,
            (SKIPPED, _) => Self::Skipped,
            (HELD, _) => Self::Held,
            _ => Self::Failed,
        }
    }
}

/// What stands for a key in the index. Keys that share one are kept in order with each other, which harms nobody.
pub(crate) fn key_hash(key: &str) -> i64 {
    let digest: [u8; 32] = Sha256::digest(key).into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A name as it is stored.
pub(crate) fn uuid(bytes: &[u8]) -> Uuid {
    Uuid::from_slice(bytes).unwrap_or_default()
}

//! What a process that answers queries reads from the store: changes of tickets and backfills since a position, and
//! pages of all of them.
//!
//! A store records changes only while somebody reads them ([`CHANGES_LIFETIME`]). A reader whose position is no longer
//! known starts over with [`Store::scan`](super::Store::scan).

use std::time::Duration;

use crate::model::Moment;

/// How long the store goes on recording changes after they were last read.
pub(crate) const CHANGES_LIFETIME: Duration = Duration::from_secs(15);

/// How many changes a store keeps for its readers, about. A change concerns all tickets of a step.
pub(super) const MAX_CHANGES: usize = 20_000;

/// How many changes are read at a time.
pub(super) const CHANGES_PAGE: usize = 500;

/// How far a reader has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position(pub(super) String);

/// What happened to some tickets, or to some backfills, in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: ChangeKind,
    /// The ids, each followed by a space except for the last.
    pub(super) ids: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Created,
    /// Left matchmaking: assigned, cancelled, expired or de-indexed.
    Left,
    /// Pending since this millisecond of the store's clock.
    Pending(i64),
    Released,
    /// There are no pending tickets any more. Has no ids.
    AllReleased,
    /// A backfill was created or acknowledged. It expires at this moment of the store's clock.
    BackfillKept(Moment),
    /// The data of a backfill changed.
    BackfillChanged,
    BackfillDeleted,
}

impl Change {
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.split(' ').filter(|id| !id.is_empty())
    }
}

/// The changes since a position. The sizes, the time and the changes belong to the same moment if `is_last`.
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    /// Whether no change since the position was missed. Otherwise there are no changes, and the new position is valid
    /// from now on.
    pub(crate) is_continuous: bool,
    /// Whether there are no further changes at the moment.
    pub(crate) is_last: bool,
    pub(crate) position: Position,
    pub(crate) changes: Vec<Change>,
    /// How many tickets are in matchmaking.
    pub(crate) tickets: u64,
    /// How many pending marks there are, including those that timed out.
    pub(crate) pending: u64,
    /// How many backfills there are, including those that expired.
    pub(crate) backfills: u64,
    /// The store's clock.
    pub(crate) now: Moment,
    /// A ticket that became pending before this millisecond is active again.
    pub(crate) live_since: i64,
}

/// How far a scan has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanCursor {
    Tickets(u64),
    Pending(u64),
    Backfills(u64),
}

impl ScanCursor {
    pub(crate) const START: Self = Self::Tickets(0);
}

/// A part of what the store contains. An id may be in several pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanPage {
    /// Ids of tickets in matchmaking. Those of other programs may be no valid ids.
    pub(crate) tickets: Vec<String>,
    /// Pending marks, each with the millisecond since which it counts.
    pub(crate) pending: Vec<(String, i64)>,
    /// Backfills, each with the moment at which it expires.
    pub(crate) backfills: Vec<(String, Moment)>,
    /// Where the next page starts. `None` after the last one.
    pub(crate) next: Option<ScanCursor>,
}

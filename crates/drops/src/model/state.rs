//! States of drops and of entries.

/// What a drop is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropState {
    /// Being prepared: nobody can join.
    Draft,
    /// Opens at a time. Players can join already.
    Scheduled,
    /// Players join and are admitted.
    Open,
    /// Players join and keep their places; nobody is admitted.
    Paused,
    /// Over.
    Closed,
    /// Given up.
    Cancelled,
}

impl DropState {
    pub const ALL: [Self; 6] =
        [Self::Draft, Self::Scheduled, Self::Open, Self::Paused, Self::Closed, Self::Cancelled];

    /// The word in events and answers.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Draft => "DRAFT",
            Self::Scheduled => "SCHEDULED",
            Self::Open => "OPEN",
            Self::Paused => "PAUSED",
            Self::Closed => "CLOSED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Returns whether players can join.
    pub const fn takes_joins(self) -> bool {
        matches!(self, Self::Scheduled | Self::Open | Self::Paused)
    }

    /// Returns whether nothing follows.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Closed | Self::Cancelled)
    }

    /// Returns the state after a change, or none if this state does not allow it.
    pub const fn after(self, change: Change) -> Option<Self> {
        match (change, self) {
            (Change::Schedule, Self::Draft | Self::Scheduled) => Some(Self::Scheduled),
            (Change::Open, Self::Draft | Self::Scheduled) => Some(Self::Open),
            (Change::Pause, Self::Open) => Some(Self::Paused),
            (Change::Resume, Self::Paused) => Some(Self::Open),
            (Change::Close, Self::Open | Self::Paused) => Some(Self::Closed),
            (Change::Cancel, Self::Draft | Self::Scheduled | Self::Open | Self::Paused) => {
                Some(Self::Cancelled)
            }
            (Change::Terms | Change::EveryoneWaits, state) if !state.is_final() => Some(state),
            _ => None,
        }
    }
}

/// What is done to a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Schedule,
    Open,
    Pause,
    Resume,
    Close,
    Cancel,
    Terms,
    EveryoneWaits,
}

impl Change {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Open => "open",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Close => "close",
            Self::Cancel => "cancel",
            Self::Terms => "change the terms of",
            Self::EveryoneWaits => "set everyone_waits of",
        }
    }
}

/// What a player's entry is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// In the line.
    Waiting,
    /// Admitted, until the admission ends.
    Entered,
    /// Left: see [`LeftReason`].
    Left,
    /// The admission ended by its time.
    Expired,
}

impl EntryState {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Entered => "ENTERED",
            Self::Left => "LEFT",
            Self::Expired => "EXPIRED",
        }
    }
}

/// Why a drop is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// An operator closed it, or its time to close came.
    Closed,
    /// All units were sold.
    SoldOut,
    /// An operator gave it up.
    Cancelled,
}

impl EndReason {
    pub const ALL: [Self; 3] = [Self::Closed, Self::SoldOut, Self::Cancelled];

    /// The word in events and answers.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::SoldOut => "SOLD_OUT",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// Why a player is not in a drop any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeftReason {
    /// The player left.
    ByPlayer,
    /// The player has bought all they may.
    BoughtAll,
    /// The drop ended while the player waited.
    DropEnded,
}

impl LeftReason {
    pub const ALL: [Self; 3] = [Self::ByPlayer, Self::BoughtAll, Self::DropEnded];

    /// The word in events and answers.
    pub const fn word(self) -> &'static str {
        match self {
            Self::ByPlayer => "BY_PLAYER",
            Self::BoughtAll => "BOUGHT_ALL",
            Self::DropEnded => "DROP_ENDED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_that_is_over_stays_over() {
        const CHANGES: [Change; 8] = [
            Change::Schedule,
            Change::Open,
            Change::Pause,
            Change::Resume,
            Change::Close,
            Change::Cancel,
            Change::Terms,
            Change::EveryoneWaits,
        ];
        for change in CHANGES {
            assert_eq!(DropState::Closed.after(change), None, "{change:?}");
            assert_eq!(DropState::Cancelled.after(change), None, "{change:?}");
        }
    }

    #[test]
    fn a_drop_is_opened_once() {
        let opened: Vec<_> =
            DropState::ALL.into_iter().filter(|state| state.after(Change::Open).is_some()).collect();
        assert_eq!(opened, [DropState::Draft, DropState::Scheduled]);
        assert_eq!(DropState::Paused.after(Change::Resume), Some(DropState::Open));
        assert_eq!(DropState::Draft.after(Change::Pause), None);
        assert_eq!(DropState::Scheduled.after(Change::Close), None);
    }
}

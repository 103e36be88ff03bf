//! The states of drops and of line entries.

/// The state of a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropState {
    /// Being prepared: players cannot see or join it.
    Draft,
    /// Opens at a set time. Players can already join.
    Scheduled,
    /// Players join and are admitted.
    Open,
    /// Players join and keep their places, but none is admitted.
    Paused,
    /// Ended: by an operator, by its closing time, or because all units were sold.
    Closed,
    /// Called off by an operator.
    Cancelled,
}

impl DropState {
    pub const ALL: [Self; 6] =
        [Self::Draft, Self::Scheduled, Self::Open, Self::Paused, Self::Closed, Self::Cancelled];

    /// Returns the name that events and responses use.
    pub const fn as_str(self) -> &'static str {
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
    pub const fn accepts_joins(self) -> bool {
        matches!(self, Self::Scheduled | Self::Open | Self::Paused)
    }

    /// Returns whether the drop has ended: no later state is possible.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Closed | Self::Cancelled)
    }

    /// Returns the state after an action, or none if this state does not allow it.
    pub const fn after(self, action: DropAction) -> Option<Self> {
        match (action, self) {
            (DropAction::Schedule, Self::Draft | Self::Scheduled) => Some(Self::Scheduled),
            (DropAction::Open, Self::Draft | Self::Scheduled) => Some(Self::Open),
            (DropAction::Pause, Self::Open) => Some(Self::Paused),
            (DropAction::Resume, Self::Paused) => Some(Self::Open),
            (DropAction::Close, Self::Open | Self::Paused) => Some(Self::Closed),
            (DropAction::Cancel, Self::Draft | Self::Scheduled | Self::Open | Self::Paused) => {
                Some(Self::Cancelled)
            }
            (DropAction::Terms | DropAction::EveryoneWaits, state) if !state.is_final() => Some(state),
            _ => None,
        }
    }
}

/// A change of a drop, requested by an operator or a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropAction {
    Schedule,
    Open,
    Pause,
    Resume,
    Close,
    Cancel,
    Terms,
    EveryoneWaits,
}

impl DropAction {
    pub const fn as_str(self) -> &'static str {
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

/// The state of a player's line entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// In the line.
    Waiting,
    /// Admitted, until the admission expires.
    Entered,
    /// Out of the line and the drop: see [`LeftReason`].
    Left,
    /// The admission expired.
    Expired,
}

impl EntryState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Entered => "ENTERED",
            Self::Left => "LEFT",
            Self::Expired => "EXPIRED",
        }
    }
}

/// Why a drop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// An operator closed it, or its closing time came.
    Closed,
    /// All units were sold.
    SoldOut,
    /// An operator called it off.
    Cancelled,
}

impl EndReason {
    pub const ALL: [Self; 3] = [Self::Closed, Self::SoldOut, Self::Cancelled];

    /// Returns the name that events and responses use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::SoldOut => "SOLD_OUT",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// Why a player is no longer in a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeftReason {
    /// The player left.
    ByPlayer,
    /// The player has bought as many units as a player may have.
    BoughtAll,
    /// The drop ended while the player waited.
    DropEnded,
}

impl LeftReason {
    pub const ALL: [Self; 3] = [Self::ByPlayer, Self::BoughtAll, Self::DropEnded];

    /// Returns the name that events and responses use.
    pub const fn as_str(self) -> &'static str {
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
    fn ended_drop_stays_ended() {
        const ACTIONS: [DropAction; 8] = [
            DropAction::Schedule,
            DropAction::Open,
            DropAction::Pause,
            DropAction::Resume,
            DropAction::Close,
            DropAction::Cancel,
            DropAction::Terms,
            DropAction::EveryoneWaits,
        ];
        for action in ACTIONS {
            assert_eq!(DropState::Closed.after(action), None, "{action:?}");
            assert_eq!(DropState::Cancelled.after(action), None, "{action:?}");
        }
    }

    #[test]
    fn drop_opens_only_once() {
        let opened: Vec<_> =
            DropState::ALL.into_iter().filter(|state| state.after(DropAction::Open).is_some()).collect();
        assert_eq!(opened, [DropState::Draft, DropState::Scheduled]);
        assert_eq!(DropState::Paused.after(DropAction::Resume), Some(DropState::Open));
        assert_eq!(DropState::Draft.after(DropAction::Pause), None);
        assert_eq!(DropState::Scheduled.after(DropAction::Close), None);
    }
}

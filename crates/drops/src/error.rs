//! What can go wrong with drops.

use std::sync::Arc;

use base::Code;
use base::error::Coded;

use crate::DropId;
use crate::model::{Change, DropState, Mistakes};

/// What can go wrong, by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} {what}")]
    Invalid { field: &'static str, what: String },
    #[error("the terms are not valid: {0}")]
    Terms(Mistakes),
    #[error("there is no drop {0}")]
    NoSuchDrop(DropId),
    #[error("a drop with the name {0:?} exists already; choose another name")]
    NameTaken(String),
    #[error("a drop that is {} does not let you {} it", .state.word(), .change.word())]
    WrongState { state: DropState, change: Change },
    #[error("{field} cannot change any more: the drop is {}", .state.word())]
    Fixed { field: &'static str, state: DropState },
    #[error("{0} units are reserved; wait until they are bought or released, or close the drop by force")]
    OpenReservations(i64),
    #[error("players cannot join a drop that is {}", .0.word())]
    NotJoinable(DropState),
    #[error("this drop is not open to this player")]
    NotEligible,
    #[error("the player is not in the line of this drop")]
    NotInLine,
    #[error("the player is not admitted to this drop, or the admission has ended")]
    NotAdmitted,
    #[error(transparent)]
    Db(#[from] db::Error),
    #[error(transparent)]
    Line(#[from] redis_store::Error),
    /// The transaction of all requests of a batch failed.
    #[error(transparent)]
    Batch(Arc<Error>),
    /// A mistake of ours.
    #[error("a batch gave no answer")]
    NoAnswer,
    /// A mistake of ours. The transaction is rolled back.
    #[error("{changed} entries were changed instead of the {read} that were read under the lock")]
    Uneven { changed: u64, read: usize },
    /// A mistake of ours.
    #[error("no random bytes for a seed")]
    NoSeed,
    /// A mistake of ours.
    #[error("an event or a column could not be written")]
    Encoding(#[from] serde_json::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::Terms(_) => Code::InvalidArgument,
            Self::NoSuchDrop(_) => Code::NotFound,
            Self::NameTaken(_) => Code::Conflict,
            Self::WrongState { .. }
            | Self::Fixed { .. }
            | Self::OpenReservations(_)
            | Self::NotJoinable(_)
            | Self::NotInLine => Code::FailedPrecondition,
            Self::NotEligible | Self::NotAdmitted => Code::PermissionDenied,
            Self::Db(error) => error.code(),
            Self::Line(error) => error.code(),
            Self::Batch(error) => error.code(),
            Self::NoAnswer | Self::Uneven { .. } | Self::NoSeed | Self::Encoding(_) => Code::Internal,
        }
    }
}

impl Error {
    /// Returns whether the transaction met another one, so that it may be tried again from the beginning.
    pub const fn is_conflict(&self) -> bool {
        match self {
            Self::Db(error) => error.is_conflict(),
            _ => false,
        }
    }
}

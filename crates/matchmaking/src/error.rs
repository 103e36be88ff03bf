//! What can go wrong in matchmaking.

use base::Code;
use base::error::Coded;

use crate::model::TicketId;

/// What can go wrong, by what a caller can do about it. The text is for the caller; the cause is not.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Invalid(String),
    #[error("there is no ticket {0}; it may have expired")]
    NotFound(TicketId),
    #[error("ticket {0} is already assigned")]
    AlreadyAssigned(TicketId),
    #[error("you wait in the queue {queue} already, with ticket {ticket}: leave it first")]
    OtherQueue { queue: String, ticket: TicketId },
    #[error("{0}")]
    TooMany(String),
    #[error("{0}")]
    Unimplemented(&'static str),
    #[error("{}", if .0.is_passing() { "the tickets cannot be reached at the moment; try again" } else { "the store of tickets refused a command" })]
    Store(#[source] redis_store::Error),
    #[error("the tickets are locked by another process; try again")]
    Locked,
    #[error("the call was interrupted; try again")]
    Interrupted,
    #[error("this process is about to stop; connect again")]
    Stopping,
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::NotFound(_) => Code::NotFound,
            Self::AlreadyAssigned(_) => Code::FailedPrecondition,
            Self::OtherQueue { .. } => Code::Conflict,
            Self::TooMany(_) => Code::RateLimited,
            Self::Unimplemented(_) => Code::Unimplemented,
            Self::Store(error) => error.code(),
            Self::Locked | Self::Interrupted | Self::Stopping => Code::Unavailable,
        }
    }
}

impl From<redis_store::Error> for Error {
    fn from(error: redis_store::Error) -> Self {
        Self::Store(error)
    }
}

//! The errors of matchmaking.

use base::Code;
use base::error::Coded;

use crate::model::{BackfillId, TicketId};
use crate::parties::Refusal;

/// The errors of matchmaking, grouped by what the caller can do. The text is for the caller; the source is for the log.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Invalid(String),
    #[error("there is no ticket {0}; it may have expired")]
    NotFound(String),
    #[error("there is no party {0}; it may have ended")]
    NoParty(String),
    #[error("Backfill id: {0} not found")]
    BackfillNotFound(String),
    #[error("can not {call} an expired backfill, id: {id}")]
    BackfillExpired { call: &'static str, id: BackfillId },
    #[error("ticket {0} is already assigned")]
    AlreadyAssigned(TicketId),
    #[error(
        "ticket {0} is in no ready check that can be answered: it has ended, or all players have accepted"
    )]
    NoReadyCheck(TicketId),
    #[error("you already wait in queue {queue} with ticket {ticket}: cancel that ticket first")]
    OtherQueue { queue: String, ticket: TicketId },
    /// A request about a party was refused.
    #[error(transparent)]
    Party(#[from] Refusal),
    #[error("{0}")]
    TooMany(String),
    /// A match function or evaluator of a Director failed.
    #[error("{0}")]
    Function(String),
    #[error("{0}")]
    Unimplemented(&'static str),
    #[error("{}", if .0.is_transient() { "the tickets are not available at the moment; try again" } else { "the store of tickets refused a command" })]
    Store(#[source] redis_store::Error),
    #[error("the tickets are locked by another process; try again")]
    Locked,
    #[error("the call was interrupted; try again")]
    Interrupted,
    #[error("this process is shutting down; connect again")]
    Stopping,
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::NotFound(_) | Self::NoParty(_) | Self::BackfillNotFound(_) => Code::NotFound,
            Self::BackfillExpired { .. } => Code::Unavailable,
            Self::AlreadyAssigned(_) | Self::NoReadyCheck(_) => Code::FailedPrecondition,
            Self::OtherQueue { .. } => Code::Conflict,
            Self::Party(refusal) => refusal.code(),
            Self::TooMany(_) => Code::RateLimited,
            Self::Function(_) => Code::Internal,
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

impl Error {
    /// Logs the cause of server-side errors. Mistakes of the caller are not logged.
    pub(crate) fn log(&self) {
        if self.code() == Code::Internal {
            tracing::error!(cause = base::error::chain(self), "A matchmaking request failed");
        } else if let Self::Store(_) = self {
            tracing::warn!(
                outage = "tickets",
                cause = base::error::chain(self),
                "The store of tickets does not answer"
            );
        }
    }
}

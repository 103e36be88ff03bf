//! What can go wrong, by what a caller can do about it.

use std::io;
use std::time::Duration;

use base::Code;
use base::error::Coded;

use crate::{EmptyId, Row, ServerError, Space};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    EmptyId(#[from] EmptyId),
    #[error("there is nothing to lock: name at least one target")]
    NoTarget,
    /// Somebody else had it for too long. Nothing is held.
    #[error("not locked within {0:?}")]
    Timeout(Duration),
    /// Every place was taken for too long: a lock that is held has a connection. Nothing is held.
    #[error(
        "none of the {places} connections for locks was free within {after:?}; hold locks for less long, or allow more"
    )]
    NoPlace { places: u32, after: Duration },
    /// Somebody takes rows in another order than we do, or locks again what they hold; or the server rolled the transaction back in
    /// favour of another one. Nothing is held.
    #[error("chosen as the victim of a deadlock")]
    Deadlock(#[source] sqlx::Error),
    #[error(
        "bucket {} of level {} ({}) is missing; `playhouse locks provision` (or hierlock::Provision) makes what is missing",
        .0.bucket, .0.level as u8, .0.level
    )]
    MissingBucket(Row),
    #[error(
        "the tables of the locks are missing; `playhouse migrate` (or hierlock::create_tables) makes them"
    )]
    NoTables(#[source] sqlx::Error),
    #[error(
        "buckets have not been made yet, or not all; `playhouse locks provision` (or hierlock::Provision) makes them"
    )]
    NotProvisioned,
    #[error(
        "the database has {recorded}, and this process is set to {ours}; processes that disagree do not keep each other out"
    )]
    OtherSpace { recorded: Space, ours: Space },
    #[error("the database has {recorded}, and {wanted} are fewer; buckets are never taken away")]
    Shrinks { recorded: Space, wanted: u32 },
    #[error(
        "the number of buckets cannot change while anybody uses the database, since some would lock by the old one; \
         stop all processes first. Connected: {}", .0.join(", ")
    )]
    InUse(Vec<String>),
    #[error("locks join a transaction that is open; begin one first")]
    NoTransaction,
    /// What was held is no longer held, and somebody else may hold it: stop writing.
    #[error("the lock was lost with its connection")]
    Lost,
    /// The server cannot be reached or let us go. Nothing is held.
    #[error("the database cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    #[error("the statement failed")]
    Statement(#[source] sqlx::Error),
}

impl Error {
    /// Whether nothing is held, nothing was done, and the same may work a moment later. A lock that was held and
    /// [lost](Error::Lost) is not of this kind: its holder may have half done what it was for.
    pub const fn is_safe_to_retry(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::NoPlace { .. } | Self::Deadlock(_) | Self::Unreachable(_))
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::EmptyId(_) | Self::NoTarget => Code::InvalidArgument,
            Self::Timeout(_) => Code::Timeout,
            Self::NoPlace { .. } | Self::Deadlock(_) | Self::Unreachable(_) | Self::Lost => Code::Unavailable,
            Self::Shrinks { .. } | Self::InUse(_) => Code::FailedPrecondition,
            _ => Code::Internal,
        }
    }
}

/// Gives up after `limit`: the driver waits for ever on a connection that has fallen silent.
pub(crate) async fn bounded<T, E: Into<Error>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => {
            let silent = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
            Err(Error::Unreachable(silent.into()))
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match ServerError::of(&error) {
            Some(ServerError::Deadlock | ServerError::Conflict) => Self::Deadlock(error),
            Some(ServerError::NoTable) => Self::NoTables(error),
            Some(ServerError::Away | ServerError::ReadOnly) => Self::Unreachable(error),
            Some(_) => Self::Statement(error),
            None if matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_)) => {
                Self::Unreachable(error)
            }
            None => Self::Statement(error),
        }
    }
}

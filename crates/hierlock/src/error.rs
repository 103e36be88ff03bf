//! The errors of this crate.

use std::io;
use std::time::Duration;

use base::Code;
use base::error::Coded;

use crate::{BucketSpace, EmptyId, Row, ServerError};

/// An error of this crate. Each variant is something that a caller or an operator can act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    EmptyId(#[from] EmptyId),
    #[error("there is nothing to lock: name at least one target")]
    NoTargets,
    /// Another holder kept the lock for too long. Nothing is held.
    #[error("not locked within {0:?}")]
    Timeout(Duration),
    /// All connections were in use for too long: each held lock occupies one. Nothing is held.
    #[error(
        "none of the {max_connections} connections for locks was free within {waited:?}; \
         hold locks for a shorter time, or raise max_connections"
    )]
    NoConnection { max_connections: u32, waited: Duration },
    /// Another client locks the rows in a different order, a caller locked again while it held a lock, or the server rolled back this
    /// transaction in favour of another one. Nothing is held.
    #[error("chosen as the victim of a deadlock")]
    Deadlock(#[source] sqlx::Error),
    #[error(
        "bucket {} of level {} ({}) is missing; create it with `playhouse locks provision` or hierlock::Provisioner",
        .0.bucket, .0.level as u8, .0.level
    )]
    MissingBucket(Row),
    #[error("the lock tables are missing; create them with `playhouse migrate` or hierlock::create_tables")]
    MissingTables(#[source] sqlx::Error),
    #[error(
        "the lock buckets do not exist yet, or not all of them; create them with `playhouse locks provision` or hierlock::Provisioner"
    )]
    NotProvisioned,
    #[error(
        "the database has {recorded}, but this process is configured for {ours}; processes that disagree do not exclude each other"
    )]
    BucketSpaceMismatch { recorded: BucketSpace, ours: BucketSpace },
    #[error("the database has {recorded}, and {wanted} are fewer; buckets are never removed")]
    CannotShrink { recorded: BucketSpace, wanted: u32 },
    #[error(
        "the number of buckets cannot change while the database is in use, because connected processes would use the old number; \
         stop all processes first. Connected: {}", .0.join(", ")
    )]
    InUse(Vec<String>),
    #[error("no transaction is open; begin one before you lock in it")]
    NoTransaction,
    /// The lock is no longer held, and another client may hold it: stop writing.
    #[error("the lock was lost with its connection")]
    Lost,
    /// The server does not answer or ended the connection. Nothing is held.
    #[error("the database cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// The database user may not run the statement. The source names the privilege.
    #[error("the database user lacks a privilege")]
    MissingPrivilege(#[source] sqlx::Error),
    #[error("the statement failed")]
    Statement(#[source] sqlx::Error),
}

impl Error {
    /// Returns whether the same call may succeed later and nothing is held or was changed. False for a [lost](Error::Lost) lock: its
    /// holder may have done half of its work.
    pub const fn is_safe_to_retry(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::NoConnection { .. } | Self::Deadlock(_) | Self::Unreachable(_)
        )
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::EmptyId(_) | Self::NoTargets => Code::InvalidArgument,
            Self::Timeout(_) => Code::Timeout,
            Self::NoConnection { .. } | Self::Deadlock(_) | Self::Unreachable(_) | Self::Lost => {
                Code::Unavailable
            }
            Self::CannotShrink { .. } | Self::InUse(_) => Code::FailedPrecondition,
            _ => Code::Internal,
        }
    }
}

/// Fails after `limit`: the driver waits forever on a connection that has gone silent.
pub(crate) async fn bounded<T, E: Into<Error>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => {
            let timed_out = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
            Err(Error::Unreachable(timed_out.into()))
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match ServerError::classify(&error) {
            Some(ServerError::Deadlock | ServerError::Conflict) => Self::Deadlock(error),
            Some(ServerError::UnknownTable) => Self::MissingTables(error),
            Some(ServerError::MissingPrivilege) => Self::MissingPrivilege(error),
            Some(ServerError::Unavailable | ServerError::ReadOnly) => Self::Unreachable(error),
            Some(_) => Self::Statement(error),
            None if matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_)) => {
                Self::Unreachable(error)
            }
            None => Self::Statement(error),
        }
    }
}

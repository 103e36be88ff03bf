//! The error of account operations.

use std::error::Error as StdError;

use base::Code;
use base::error::Coded;

use crate::UserId;

/// Why an operation on users or accounts failed. The text is shown to the caller; the source is only logged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} {rule}")]
    Invalid { field: &'static str, rule: String },
    #[error("there is no user {0}")]
    NotFound(UserId),
    #[error("no user has this identity; sign in with it, or link it to a user")]
    UnknownIdentity,
    #[error("user {user} is banned: {reason}")]
    Banned { user: UserId, reason: String },
    #[error("the identity belongs to another user; unlink it there first")]
    LinkedElsewhere,
    #[error(
        "this is the user's only identity, and the user could not sign in without it; link another one first"
    )]
    LastIdentity,
    #[error("user {0} was erased, which cannot be undone; the next sign-in creates a new user")]
    Erased(UserId),
    /// Concurrent changes of the same user won in every attempt.
    #[error("the user was changed by other requests at the same time; try again")]
    Conflict,
    #[error("{}", caller_text(.0))]
    Db(
        #[from]
        #[source]
        db::Error,
    ),
    /// An [`OnErase`](crate::OnErase) failed. Nothing was erased.
    #[error("a service could not erase its data about the user, so nothing was erased; try again")]
    OnErase { code: Code, source: Box<dyn StdError + Send + Sync> },
    /// A bug in this crate.
    #[error("an event could not be encoded")]
    Event(#[from] serde_json::Error),
}

impl Error {
    /// Wraps the error of an [`OnErase`](crate::OnErase) of another service.
    pub fn on_erase(source: impl Coded + Send + Sync + 'static) -> Self {
        Self::OnErase { code: source.code(), source: Box::new(source) }
    }

    /// Returns whether the transaction conflicted with another one and changed nothing. A retry sees the state that the other one left.
    pub(crate) const fn is_conflict(&self) -> bool {
        match self {
            Self::Conflict => true,
            Self::Db(error) => error.is_conflict(),
            _ => false,
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::NotFound(_) | Self::UnknownIdentity => Code::NotFound,
            Self::Banned { .. } => Code::PermissionDenied,
            Self::LinkedElsewhere => Code::Conflict,
            Self::LastIdentity | Self::Erased(_) => Code::FailedPrecondition,
            Self::Conflict => Code::Unavailable,
            Self::Db(error) => error.code(),
            Self::OnErase { code, .. } => *code,
            Self::Event(_) => Code::Internal,
        }
    }
}

/// Returns the text about a database error that is shown to callers.
fn caller_text(error: &db::Error) -> &'static str {
    match error {
        db::Error::Lock(hierlock::Error::Timeout(_)) => {
            "the user stayed locked by other requests for too long; try again"
        }
        error if error.is_transient() => "the account database does not answer; try again",
        _ => "accounts could not be read or changed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_concurrent_transactions_are_conflicts() {
        let closed = || sqlx::Error::PoolClosed;
        assert!(Error::Conflict.is_conflict());
        assert!(Error::from(db::Error::Busy(closed())).is_conflict());
        assert!(!Error::from(db::Error::Unreachable(closed())).is_conflict());
        assert!(!Error::LastIdentity.is_conflict());
    }
}

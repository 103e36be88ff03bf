//! Errors of notifications.

use base::Code;
use base::error::Coded;

use crate::NotificationId;

/// One variant per thing that a caller can act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no notification {0}, or it was removed")]
    NotFound(NotificationId),
    #[error("at most {max} are allowed in one request")]
    TooMany { max: usize },
    #[error("{0}")]
    Invalid(String),
    #[error("there is no user {0}")]
    UnknownUser(account::UserId),
    #[error(
        "there is no dead letter {0}: it never existed, was replayed or discarded, or is older than notification.dead_retention"
    )]
    DeadLetterNotFound(String),
    #[error("there is no broadcast {0}, or it was removed after notification.delivery.retention")]
    BroadcastNotFound(base::id::Uuid),
    #[error("{0}")]
    NotPossible(String),
    #[error(transparent)]
    BadKey(#[from] db::InvalidIdempotencyKey),
    #[error("this idempotency key was used for a different request; use a new key for each request")]
    KeyReused,
    #[error(transparent)]
    Account(#[from] account::Error),
    #[error(transparent)]
    Db(#[from] db::Error),
}

impl Error {
    /// Whether a transaction conflicted with another one.
    pub(crate) const fn is_conflict(&self) -> bool {
        match self {
            Self::Db(error) => error.is_conflict(),
            _ => false,
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::NotFound(_)
            | Self::UnknownUser(_)
            | Self::DeadLetterNotFound(_)
            | Self::BroadcastNotFound(_) => Code::NotFound,
            Self::TooMany { .. } | Self::Invalid(_) | Self::BadKey(_) => Code::InvalidArgument,
            Self::NotPossible(_) => Code::FailedPrecondition,
            Self::KeyReused => Code::Unprocessable,
            Self::Account(error) => error.code(),
            Self::Db(error) => error.code(),
        }
    }
}

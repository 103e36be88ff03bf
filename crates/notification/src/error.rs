//! What can go wrong with notifications.

use base::Code;
use base::error::Coded;

use crate::NotificationId;

/// What can go wrong, by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no notification {0}, or not any more")]
    NotFound(NotificationId),
    #[error("at most {most} at once")]
    TooMany { most: usize },
    #[error("{0}")]
    Invalid(String),
    #[error("there is no user {0}")]
    UnknownUser(account::UserId),
    #[error(
        "{0} is not among the dead letters: it never was, was replayed or discarded, or its time is over"
    )]
    NoLetter(String),
    #[error("there is no broadcast {0}, or not any more")]
    NoBroadcast(base::id::Uuid),
    #[error("{0}")]
    Unfit(String),
    #[error(transparent)]
    BadKey(#[from] db::BadKey),
    #[error("this idempotency key was used for another request; give each request a key of its own")]
    KeyReused,
    #[error(transparent)]
    Account(#[from] account::Error),
    #[error(transparent)]
    Db(#[from] db::Error),
}

impl Error {
    /// Whether a transaction met another one.
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
            Self::NotFound(_) | Self::UnknownUser(_) | Self::NoLetter(_) | Self::NoBroadcast(_) => {
                Code::NotFound
            }
            Self::TooMany { .. } | Self::Invalid(_) | Self::BadKey(_) => Code::InvalidArgument,
            Self::Unfit(_) => Code::FailedPrecondition,
            Self::KeyReused => Code::Unprocessable,
            Self::Account(error) => error.code(),
            Self::Db(error) => error.code(),
        }
    }
}

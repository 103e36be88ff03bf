//! What can go wrong with users and accounts.

use std::error::Error as StdError;

use base::Code;
use base::error::Coded;

use crate::UserId;

/// What can go wrong, by what a caller can do about it. The text is for the caller; the source is not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} {rule}")]
    Invalid { field: &'static str, rule: String },
    #[error("there is no user {0}")]
    NotFound(UserId),
    #[error("the identity is not linked; a sign-in or a link ties it to a user")]
    UnknownIdentity,
    #[error("user {user} is banned: {reason}")]
    Banned { user: UserId, reason: String },
    #[error("the identity belongs to another user; unlink it there first")]
    LinkedElsewhere,
    #[error("it is the user's last identity, without which nobody could sign in; link another one first")]
    LastIdentity,
    #[error("user {0} was erased, which cannot be undone; a new sign-in makes a new user")]
    Erased(UserId),
    /// The attempts were used up while others kept changing the same.
    #[error("others were changing the same user at the same time; try again")]
    Raced,
    #[error("{}", said_of(.0))]
    Db(
        #[from]
        #[source]
        db::Error,
    ),
    /// A part of the product could not erase what it keeps of the user. Nothing was erased at all.
    #[error("what another part keeps of the user could not be erased, so nothing was; try again")]
    OnErase { code: Code, source: Box<dyn StdError + Send + Sync> },
    /// A mistake of ours.
    #[error("an event could not be written")]
    Event(#[from] serde_json::Error),
}

impl Error {
    /// For an [`OnErase`](crate::OnErase) whose error is not one of ours.
    pub fn on_erase(source: impl Coded + Send + Sync + 'static) -> Self {
        Self::OnErase { code: source.code(), source: Box::new(source) }
    }

    /// Whether the transaction met another one, left nothing behind, and finds out who won when it is tried again.
    pub(crate) const fn is_conflict(&self) -> bool {
        match self {
            Self::Raced => true,
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
            Self::Raced => Code::Unavailable,
            Self::Db(error) => error.code(),
            Self::OnErase { code, .. } => *code,
            Self::Event(_) => Code::Internal,
        }
    }
}

fn said_of(error: &db::Error) -> &'static str {
    match error {
        db::Error::Lock(hierlock::Error::Timeout(_)) => "the user is in use for too long; try again",
        error if error.is_passing() => "the accounts cannot be reached at the moment; try again",
        _ => "the accounts could not be read or changed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_met_another_transaction_is_a_conflict() {
        let closed = || sqlx::Error::PoolClosed;
        assert!(Error::Raced.is_conflict());
        assert!(Error::from(db::Error::Busy(closed())).is_conflict());
        assert!(!Error::from(db::Error::Unreachable(closed())).is_conflict());
        assert!(!Error::LastIdentity.is_conflict());
    }
}

//! What can go wrong with an entitlement.

use base::error::Coded;
use base::{Code, Timestamp};

use crate::model::Holding;

/// What can go wrong, by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} {what}")]
    Invalid { field: &'static str, what: String },
    #[error("the user {} has no account {}", .0.user, .0.account)]
    NoAccount(Holding),
    #[error("the account {} never had {:?}", .0.account, .0.resource)]
    Unknown(Holding),
    #[error("this entitlement is counted: name a quantity, or revoke all of it first")]
    Counted,
    #[error("this entitlement is not counted: leave out the quantity, or revoke all of it first")]
    NotCounted,
    /// Only where the caller asked for it: see [`Entitlements::apply_each_in`](crate::Entitlements::apply_each_in).
    #[error("a newer change of this entitlement is known, as of {}", .0.to_rfc3339())]
    Superseded(Timestamp),
    #[error(transparent)]
    BadKey(#[from] db::BadKey),
    #[error("this idempotency key was used for another request; give each request a key of its own")]
    KeyReused,
    #[error(
        "another change of the same entitlement, or of its account, is still being made; send this one again with the same \
         idempotency key"
    )]
    StillRunning(#[source] Box<db::Error>),
    #[error(transparent)]
    Account(#[from] account::Error),
    #[error(transparent)]
    Db(#[from] db::Error),
    /// A mistake in the program that called [`Entitlements::apply_in`](crate::Entitlements::apply_in).
    #[error("the transaction does not hold the lock on {:?} of the account {}: begin it with Entitlements::begin", .0.resource, .0.account)]
    NotLocked(Holding),
    /// A mistake of ours.
    #[error("the ledger gave no answer")]
    NoAnswer,
    /// A mistake of ours.
    #[error("an answer could not be written or read")]
    Answer(#[from] serde_json::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::BadKey(_) => Code::InvalidArgument,
            Self::NoAccount(_) | Self::Unknown(_) => Code::NotFound,
            Self::Counted | Self::NotCounted | Self::Superseded(_) => Code::FailedPrecondition,
            Self::KeyReused => Code::Unprocessable,
            Self::StillRunning(_) => Code::Conflict,
            Self::Account(error) => error.code(),
            Self::Db(error) => error.code(),
            Self::NotLocked(_) | Self::NoAnswer | Self::Answer(_) => Code::Internal,
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

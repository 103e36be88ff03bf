//! The error of entitlement operations.

use base::error::Coded;
use base::{Code, Timestamp};

use crate::model::Holding;

/// Why an operation on entitlements failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} {what}")]
    Invalid { field: &'static str, what: String },
    #[error("the user {} has no account {}", .0.user, .0.account)]
    NoAccount(Holding),
    #[error("the account {} has never owned {:?}", .0.account, .0.resource)]
    NotFound(Holding),
    #[error("this entitlement is counted: send a quantity, or revoke everything first")]
    Counted,
    #[error("this entitlement is not counted: omit the quantity, or revoke everything first")]
    NotCounted,
    /// Returned only by [`Entitlements::apply_each_in`](crate::Entitlements::apply_each_in).
    #[error("a newer change of this entitlement exists, as of {}", .0.to_rfc3339())]
    Superseded(Timestamp),
    #[error(transparent)]
    InvalidKey(#[from] db::InvalidIdempotencyKey),
    #[error("this idempotency key was used for another request; use a new key for each request")]
    KeyReused,
    #[error(
        "another change of the same entitlement or its account is still in progress; retry with the same idempotency key"
    )]
    StillRunning(#[source] Box<db::Error>),
    #[error(transparent)]
    Account(#[from] account::Error),
    #[error(transparent)]
    Db(#[from] db::Error),
    /// A bug in the caller of [`Entitlements::apply_in`](crate::Entitlements::apply_in).
    #[error("the transaction does not hold the lock on {:?} of the account {}: begin it with Entitlements::begin", .0.resource, .0.account)]
    NotLocked(Holding),
    /// A bug in this crate.
    #[error("the request has no response")]
    NoResponse,
    /// A bug in this crate.
    #[error("a response could not be encoded or decoded")]
    Json(#[from] serde_json::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::InvalidKey(_) => Code::InvalidArgument,
            Self::NoAccount(_) | Self::NotFound(_) => Code::NotFound,
            Self::Counted | Self::NotCounted | Self::Superseded(_) => Code::FailedPrecondition,
            Self::KeyReused => Code::Unprocessable,
            Self::StillRunning(_) => Code::Conflict,
            Self::Account(error) => error.code(),
            Self::Db(error) => error.code(),
            Self::NotLocked(_) | Self::NoResponse | Self::Json(_) => Code::Internal,
        }
    }
}

impl Error {
    /// Returns whether the transaction conflicted with another one, so that it can be retried from the beginning.
    pub const fn is_conflict(&self) -> bool {
        match self {
            Self::Db(error) => error.is_conflict(),
            _ => false,
        }
    }
}

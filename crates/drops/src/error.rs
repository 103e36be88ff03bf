//! The errors of drops.

use std::sync::Arc;

use base::error::Coded;
use base::{Code, counted};

use crate::model::{DropAction, DropState, Mistakes};
use crate::token::TokenError;
use crate::{DropId, OrderId, ReservationId};

/// An error of drops. Each variant is something a caller can act on, or a bug.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} {what}")]
    Invalid { field: &'static str, what: String },
    #[error("the terms are not valid: {0}")]
    Terms(Mistakes),
    #[error("there is no drop {0}")]
    NoSuchDrop(DropId),
    #[error("a drop with the name {0:?} exists already; choose another name")]
    NameTaken(String),
    #[error("you cannot {} a drop that is {}", .action.as_str(), .state.as_str())]
    WrongState { state: DropState, action: DropAction },
    #[error("{field} cannot change any more: the drop is {}", .state.as_str())]
    Fixed { field: &'static str, state: DropState },
    #[error("{0} units are reserved; wait until they are bought or released, or close the drop by force")]
    OpenReservations(i64),

    // The waiting room.
    #[error("players cannot join a drop that is {}", .0.as_str())]
    NotJoinable(DropState),
    #[error("you may not join this drop: it requires a role or an entitlement that you do not have")]
    NotEligible,
    #[error("the player is neither in the line of this drop nor inside")]
    NotInLine,
    #[error("you are not admitted to this drop; join the line and wait for your admission")]
    NotAdmitted,
    #[error("your admission has ended; join the line again")]
    AdmissionEnded,

    #[error("the admission token is refused: {0}; send the token from your place in this drop")]
    BadAdmission(TokenError),

    // The stock.
    #[error("the drop {0} is not open; nothing can be reserved")]
    NotOpen(DropId),
    #[error("too few units are left: {available}")]
    SoldOut { available: i64 },
    #[error("a player may have {} of this drop; you already own or hold {taken}", counted(*limit, "unit"))]
    OverLimit { limit: i64, taken: i64 },
    #[error("there is no reservation {0}")]
    UnknownReservation(ReservationId),
    #[error("the reservation {0} has ended; reserve again")]
    ReservationEnded(ReservationId),
    #[error("the reservation {0} is paid for and cannot be released")]
    AlreadyPaid(ReservationId),
    #[error("too few units are available: {available}; the others are reserved or sold")]
    StockInUse { available: i64 },

    // Orders and payments.
    #[error("there is no order {0}")]
    UnknownOrder(OrderId),
    #[error("this reservation already has an order of {}; send the same quantity or none", counted(*ordered, "unit"))]
    OtherQuantity { ordered: i64 },
    #[error("the order {order} costs {expected}, not {found}")]
    WrongAmount { order: OrderId, expected: String, found: String },
    #[error("the order {0} has another payment; no surplus payment with this id is known")]
    OtherPayment(OrderId),
    #[error("no refund of this payment is due for the order {0}")]
    NoRefundDue(OrderId),
    #[error("this webhook id was used for another webhook")]
    WebhookReused,
    #[error("the webhook is not signed by the payment provider: {0}")]
    Unsigned(#[from] webhook::VerifyError),
    #[error("webhooks cannot be verified: set drops.payments.secrets to the provider's keys")]
    NoWebhookKeys,
    #[error("the webhook cannot be read: {0}")]
    UnreadableWebhook(String),

    #[error(transparent)]
    BadKey(#[from] db::InvalidIdempotencyKey),
    #[error("this idempotency key was used for another request; use a new key for each request")]
    KeyReused,
    /// The transaction that this request shared with others failed. Nothing was done, or a retry with the same key returns the result.
    #[error("{0}")]
    Batch(#[source] Arc<Error>),
    #[error(transparent)]
    Entitlement(#[from] entitlement::Error),
    #[error(transparent)]
    Db(#[from] db::Error),
    #[error(transparent)]
    Line(#[from] redis_store::Error),
    /// A bug.
    #[error("a batch returned no result")]
    NoBatchResult,
    /// A bug. The transaction is rolled back.
    #[error("{changed} entries were changed instead of the {read} that were read under the lock")]
    RowCountMismatch { changed: u64, read: usize },
    /// A bug.
    #[error("the system returned no random bytes")]
    NoRandomBytes,
    /// A bug.
    #[error("a response, an event or a column could not be serialized or parsed")]
    Encoding(#[from] serde_json::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::Terms(_) | Self::BadKey(_) | Self::UnreadableWebhook(_) => {
                Code::InvalidArgument
            }
            Self::Unsigned(_) => Code::Unauthenticated,
            Self::NotEligible | Self::NotAdmitted | Self::BadAdmission(_) => Code::PermissionDenied,
            Self::NoSuchDrop(_) | Self::UnknownReservation(_) | Self::UnknownOrder(_) => Code::NotFound,
            Self::NameTaken(_) => Code::Conflict,
            Self::WrongState { .. }
            | Self::Fixed { .. }
            | Self::OpenReservations(_)
            | Self::NotJoinable(_)
            | Self::NotInLine
            | Self::NotOpen(_)
            | Self::AdmissionEnded
            | Self::SoldOut { .. }
            | Self::OverLimit { .. }
            | Self::ReservationEnded(_)
            | Self::AlreadyPaid(_)
            | Self::StockInUse { .. }
            | Self::NoRefundDue(_) => Code::FailedPrecondition,
            Self::OtherQuantity { .. }
            | Self::WrongAmount { .. }
            | Self::OtherPayment(_)
            | Self::WebhookReused
            | Self::KeyReused => Code::Unprocessable,
            // The provider retries, so webhooks are not lost while no key is configured.
            Self::NoWebhookKeys => Code::Unavailable,
            Self::Batch(error) => error.code(),
            Self::Entitlement(error) => error.code(),
            Self::Db(error) => error.code(),
            Self::Line(error) => error.code(),
            Self::NoBatchResult | Self::RowCountMismatch { .. } | Self::NoRandomBytes | Self::Encoding(_) => {
                Code::Internal
            }
        }
    }
}

/// An expired token means that the admission has ended.
impl From<TokenError> for Error {
    fn from(refused: TokenError) -> Self {
        match refused {
            TokenError::Expired => Self::AdmissionEnded,
            TokenError::Malformed
            | TokenError::Signature
            | TokenError::OtherPlayer
            | TokenError::OtherDrop => Self::BadAdmission(refused),
        }
    }
}

impl Error {
    /// Returns whether the transaction conflicted with another one and can be retried from the start.
    pub const fn is_conflict(&self) -> bool {
        match self {
            Self::Db(error) => error.is_conflict(),
            Self::Entitlement(error) => error.is_conflict(),
            _ => false,
        }
    }

    /// Returns whether the database is unreachable or read-only, so that an immediate retry is useless.
    pub(crate) const fn is_unavailable(&self) -> bool {
        use db::Error::{ReadOnly, Unreachable};
        matches!(
            self,
            Self::Db(Unreachable(_) | ReadOnly(_))
                | Self::Entitlement(entitlement::Error::Db(Unreachable(_) | ReadOnly(_)))
        )
    }
}

//! What can go wrong with drops.

use std::sync::Arc;

use base::Code;
use base::error::Coded;

use crate::model::{Change, DropState, Mistakes};
use crate::token::Refused;
use crate::{DropId, OrderId, ReservationId};

/// What can go wrong, by what a caller can do about it.
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
    #[error("a drop that is {} does not let you {} it", .state.word(), .change.word())]
    WrongState { state: DropState, change: Change },
    #[error("{field} cannot change any more: the drop is {}", .state.word())]
    Fixed { field: &'static str, state: DropState },
    #[error("{0} units are reserved; wait until they are bought or released, or close the drop by force")]
    OpenReservations(i64),

    // The waiting room.
    #[error("players cannot join a drop that is {}", .0.word())]
    NotJoinable(DropState),
    #[error("this drop is not open to this player")]
    NotEligible,
    #[error("the player is not in the line of this drop")]
    NotInLine,
    #[error("you are not admitted to this drop; join the line and wait for your admission")]
    NotAdmitted,
    #[error("your admission has ended; join the line again")]
    AdmissionEnded,

    #[error("the admission is refused: {0}; send the token of your place")]
    BadAdmission(Refused),

    // The stock.
    #[error("the drop {0} sells nothing at the moment: it is not open")]
    NotOpen(DropId),
    #[error("there are {available} units left")]
    SoldOut { available: i64 },
    #[error("a player may have {limit} units of this drop, and you have or hold {taken}")]
    OverLimit { limit: i64, taken: i64 },
    #[error("there is no reservation {0}")]
    UnknownReservation(ReservationId),
    #[error("the reservation {0} has ended; reserve again")]
    ReservationEnded(ReservationId),
    #[error("the reservation {0} is paid for and cannot be released")]
    AlreadyPaid(ReservationId),
    #[error("only {available} units are available; the others are reserved or sold")]
    StockInUse { available: i64 },

    // Orders and payments.
    #[error("there is no order {0}")]
    UnknownOrder(OrderId),
    #[error("there is an order of {ordered} units for this reservation; send the same quantity")]
    OtherQuantity { ordered: i64 },
    #[error("the order {order} costs {expected}, not {found}")]
    WrongAmount { order: OrderId, expected: String, found: String },
    #[error("the order {0} belongs to another payment")]
    OtherPayment(OrderId),
    #[error("no refund of this payment is due for the order {0}")]
    NoRefundDue(OrderId),
    #[error("this webhook id was used for another message")]
    WebhookReused,
    #[error("the webhook is not signed by the payment provider: {0}")]
    Unsigned(#[from] webhook::Unverified),
    #[error("webhooks cannot be verified: drops.payments.secrets names no key")]
    NoPayments,
    #[error("the webhook cannot be read: {0}")]
    UnreadableWebhook(String),

    #[error(transparent)]
    BadKey(#[from] db::BadKey),
    #[error("this idempotency key was used for another request; give each request a key of its own")]
    KeyReused,
    /// The transaction that this request shared with others failed. Nothing was done, or the same key shows what was.
    #[error("{0}")]
    Batch(#[source] Arc<Error>),
    #[error(transparent)]
    Entitlement(#[from] entitlement::Error),
    #[error(transparent)]
    Db(#[from] db::Error),
    #[error(transparent)]
    Line(#[from] redis_store::Error),
    /// A mistake of ours.
    #[error("a batch gave no answer")]
    NoAnswer,
    /// A mistake of ours. The transaction is rolled back.
    #[error("{changed} entries were changed instead of the {read} that were read under the lock")]
    Uneven { changed: u64, read: usize },
    /// A mistake of ours.
    #[error("no random bytes for a seed")]
    NoSeed,
    /// A mistake of ours.
    #[error("an answer, an event or a column could not be written or read")]
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
            // The provider sends again what we cannot verify yet.
            Self::NoPayments => Code::Unavailable,
            Self::Batch(error) => error.code(),
            Self::Entitlement(error) => error.code(),
            Self::Db(error) => error.code(),
            Self::Line(error) => error.code(),
            Self::NoAnswer | Self::Uneven { .. } | Self::NoSeed | Self::Encoding(_) => Code::Internal,
        }
    }
}

/// A token that has expired is an admission that has ended.
impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Expired => Self::AdmissionEnded,
            Refused::Malformed | Refused::Signature | Refused::OtherPlayer | Refused::OtherDrop => {
                Self::BadAdmission(refused)
            }
        }
    }
}

impl Error {
    /// Returns whether the transaction met another one, so that it may be tried again from the beginning.
    pub const fn is_conflict(&self) -> bool {
        match self {
            Self::Db(error) => error.is_conflict(),
            Self::Entitlement(error) => error.is_conflict(),
            _ => false,
        }
    }

    /// Returns whether the database is away or takes no writes, so that it is of no use to try again at once.
    pub(crate) const fn is_away(&self) -> bool {
        use db::Error::{ReadOnly, Unreachable};
        matches!(
            self,
            Self::Db(Unreachable(_) | ReadOnly(_))
                | Self::Entitlement(entitlement::Error::Db(Unreachable(_) | ReadOnly(_)))
        )
    }
}

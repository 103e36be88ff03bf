//! What can go wrong with a drop.

use std::sync::Arc;

use base::Code;
use base::error::Coded;

use crate::{DropId, OrderId, ReservationId};

/// What can go wrong, by what a caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field} {what}")]
    Invalid { field: &'static str, what: String },
    #[error("there is no drop {0}")]
    NoSuchDrop(DropId),
    #[error("the drop {0} sells nothing at the moment: it is not open")]
    NotOpen(DropId),

    // The stock.
    #[error("you are not admitted to this drop; join the line and wait for your admission")]
    NotAdmitted,
    #[error("your admission has ended; join the line again")]
    AdmissionEnded,
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
    #[error("this webhook id was used for another message")]
    WebhookReused,
    #[error("the webhook is not signed by the payment provider: {0}")]
    Unsigned(#[from] webhook::Unverified),
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
    /// A mistake of ours.
    #[error("the batch gave no answer")]
    NoAnswer,
    /// A mistake of ours.
    #[error("an answer or an event could not be written or read")]
    Encoding(#[from] serde_json::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::BadKey(_) | Self::UnreadableWebhook(_) => Code::InvalidArgument,
            Self::Unsigned(_) => Code::Unauthenticated,
            Self::NotAdmitted => Code::PermissionDenied,
            Self::NoSuchDrop(_) | Self::UnknownReservation(_) | Self::UnknownOrder(_) => Code::NotFound,
            Self::NotOpen(_)
            | Self::AdmissionEnded
            | Self::SoldOut { .. }
            | Self::OverLimit { .. }
            | Self::ReservationEnded(_)
            | Self::AlreadyPaid(_)
            | Self::StockInUse { .. } => Code::FailedPrecondition,
            Self::OtherQuantity { .. }
            | Self::WrongAmount { .. }
            | Self::OtherPayment(_)
            | Self::WebhookReused
            | Self::KeyReused => Code::Unprocessable,
            Self::Batch(error) => error.code(),
            Self::Entitlement(error) => error.code(),
            Self::Db(error) => error.code(),
            Self::NoAnswer | Self::Encoding(_) => Code::Internal,
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
}

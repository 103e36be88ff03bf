//! What an order is, and what a message of the payment provider makes of it. Nothing here knows a store.

use account::{AccountId, UserId};
use base::Timestamp;

use crate::{DropId, OrderId, ReservationId};

/// Where an order stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderState {
    Pending,
    Paid,
    RefundDue,
    Failed,
    Refunded,
}

impl OrderState {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Paid => "PAID",
            Self::RefundDue => "REFUND_DUE",
            Self::Failed => "FAILED",
            Self::Refunded => "REFUNDED",
        }
    }
}

/// An order of a player.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub id: OrderId,
    pub drop: DropId,
    pub reservation: ReservationId,
    pub user: UserId,
    pub account: AccountId,
    pub state: OrderState,
    pub quantity: i64,
    /// In the smallest unit of the currency.
    pub amount: i64,
    pub currency: String,
    /// What the provider calls the payment, once it has succeeded or was refunded.
    pub payment: Option<String>,
    pub created_at: Timestamp,
    /// Counts up by one with every change.
    pub version: i64,
}

/// A message of the payment provider about an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The provider's id of the message: the same however often it is sent.
    pub id: String,
    pub kind: NoticeKind,
    pub order: OrderId,
    /// What the provider calls the payment.
    pub payment: String,
    pub amount: i64,
    pub currency: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    Succeeded,
    Failed,
    Refunded,
}

impl NoticeKind {
    /// The `type` of the message.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "payment.succeeded",
            Self::Failed => "payment.failed",
            Self::Refunded => "payment.refunded",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Succeeded, Self::Failed, Self::Refunded].into_iter().find(|kind| kind.word() == word)
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The order has a new state.
    Changed(OrderState),
    /// Something later is known already, or the same: nothing changed.
    Unchanged(OrderState),
    /// The message was received before.
    Repeated(OrderState),
}

impl Outcome {
    pub const fn state(self) -> OrderState {
        match self {
            Self::Changed(state) | Self::Unchanged(state) | Self::Repeated(state) => state,
        }
    }
}

/// What is to be done about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sell the units, or find that a refund is due.
    Sell,
    Fail,
    /// Refund what was sold.
    TakeBack,
    /// Refund an order of which nothing was sold.
    Void,
    Nothing,
}

impl OrderState {
    /// Returns what a message asks for in this state. A state never goes back, so that the order of arrival does not matter.
    pub(crate) const fn step(self, kind: NoticeKind) -> Step {
        match (kind, self) {
            (NoticeKind::Succeeded, Self::Pending | Self::Failed) => Step::Sell,
            (NoticeKind::Failed, Self::Pending) => Step::Fail,
            (NoticeKind::Refunded, Self::Paid) => Step::TakeBack,
            (NoticeKind::Refunded, Self::Pending | Self::Failed | Self::RefundDue) => Step::Void,
            _ => Step::Nothing,
        }
    }
}

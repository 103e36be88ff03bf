//! What an order is, and what a webhook of the payment provider makes of it. Nothing here knows a store.

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
    pub const ALL: [Self; 5] = [Self::Pending, Self::Paid, Self::RefundDue, Self::Failed, Self::Refunded];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Paid => "PAID",
            Self::RefundDue => "REFUND_DUE",
            Self::Failed => "FAILED",
            Self::Refunded => "REFUNDED",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
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
    /// The time at which the entitlement was granted. A refund revokes as of then, so that it takes nothing that was revoked since.
    pub granted_at: Option<Timestamp>,
    /// The operator who refunded the payment by hand.
    pub settled_by: Option<String>,
    pub created_at: Timestamp,
    /// Counts up by one with every change.
    pub version: i64,
}

/// Which orders to list, in the order of their creation.
#[derive(Clone, Copy, Debug)]
pub struct ListOrders {
    pub state: OrderState,
    /// Only those of one drop.
    pub drop: Option<DropId>,
    pub after: Option<OrderId>,
    pub limit: u32,
}

/// A payment that an operator must refund.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundDue {
    pub order: Order,
    /// What the provider calls the payment. The order's own, or a surplus one.
    pub payment: String,
    /// Whether another payment has paid for the order. Otherwise there was nothing to give for it.
    pub is_surplus: bool,
    pub since: Timestamp,
}

/// A payment that succeeded for an order which another payment had paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SurplusState {
    RefundDue,
    Refunded,
}

impl SurplusState {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::RefundDue => OrderState::RefundDue.word(),
            Self::Refunded => OrderState::Refunded.word(),
        }
    }
}

/// A webhook of the payment provider about an order, verified and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The provider's id of the webhook: the same however often it is sent.
    pub id: String,
    pub kind: WebhookKind,
    pub order: OrderId,
    /// What the provider calls the payment.
    pub payment: String,
    pub amount: i64,
    pub currency: String,
}

impl Webhook {
    /// Returns whether the amount and the currency are those of the order.
    pub(crate) fn has_amount_of(&self, order: &Order) -> bool {
        (self.amount, self.currency.as_str()) == (order.amount, order.currency.as_str())
    }

    /// Returns whether it is about another payment than the order's.
    pub(crate) fn is_other_payment(&self, order: &Order) -> bool {
        order.payment.as_ref().is_some_and(|payment| *payment != self.payment)
    }

    /// Returns whether it asks for the units of an order in this state, with nothing out of the ordinary.
    pub(crate) fn sells(&self, order: &Order) -> bool {
        order.state.step(self.kind) == Step::Sell
            && self.has_amount_of(order)
            && !self.is_other_payment(order)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookKind {
    Succeeded,
    Failed,
    Refunded,
}

impl WebhookKind {
    /// The `type` of the webhook.
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

/// What became of a webhook. Each variant has the order's state after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The order has a new state.
    Changed(OrderState),
    /// Something later is known already, or the same: nothing changed.
    Unchanged(OrderState),
    /// The webhook was received before.
    Repeated(OrderState),
    /// It is about a surplus payment, which must be refunded or has been. The order stays as it is.
    Surplus(OrderState),
}

impl Outcome {
    pub const fn state(self) -> OrderState {
        match self {
            Self::Changed(state) | Self::Unchanged(state) | Self::Repeated(state) | Self::Surplus(state) => {
                state
            }
        }
    }
}

/// What is to be done about a webhook.
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
    /// Returns what a webhook asks for in this state. A state never goes back, so that the order of arrival does not matter.
    pub(crate) const fn step(self, kind: WebhookKind) -> Step {
        match (kind, self) {
            (WebhookKind::Succeeded, Self::Pending | Self::Failed) => Step::Sell,
            (WebhookKind::Failed, Self::Pending) => Step::Fail,
            (WebhookKind::Refunded, Self::Paid) => Step::TakeBack,
            (WebhookKind::Refunded, Self::Pending | Self::Failed | Self::RefundDue) => Step::Void,
            _ => Step::Nothing,
        }
    }
}

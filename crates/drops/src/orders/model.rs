//! Orders, webhooks, and how webhooks change orders. Pure rules, without a store.

use account::{AccountId, UserId};
use base::Timestamp;

use crate::{DropId, OrderId, ReservationId};

/// The state of an order.
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

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Paid => "PAID",
            Self::RefundDue => "REFUND_DUE",
            Self::Failed => "FAILED",
            Self::Refunded => "REFUNDED",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// A player's order.
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
    /// The provider's id of the payment, once it has succeeded or was refunded.
    pub payment: Option<String>,
    /// When the entitlement was granted. A refund revokes as of then, so that it revokes nothing twice.
    pub granted_at: Option<Timestamp>,
    /// The operator who marked the payment as refunded.
    pub settled_by: Option<String>,
    pub created_at: Timestamp,
    /// Incremented with every change.
    pub version: i64,
}

/// Which orders to list, in the order of their creation.
#[derive(Clone, Copy, Debug)]
pub struct ListOrders {
    pub state: OrderState,
    /// Only orders of this drop.
    pub drop: Option<DropId>,
    pub after: Option<OrderId>,
    pub limit: u32,
}

/// The state of a surplus payment: one that succeeded for an order that was already paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SurplusState {
    RefundDue,
    Refunded,
}

impl SurplusState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::RefundDue => OrderState::RefundDue.as_str(),
            Self::Refunded => OrderState::Refunded.as_str(),
        }
    }
}

/// A verified and parsed webhook of the payment provider about an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The provider's id of the webhook: the same however often it is sent.
    pub id: String,
    pub kind: WebhookKind,
    pub order: OrderId,
    /// The provider's id of the payment.
    pub payment: String,
    pub amount: i64,
    pub currency: String,
}

impl Webhook {
    /// Returns whether the amount and the currency are those of the order.
    pub(crate) fn has_amount_of(&self, order: &Order) -> bool {
        (self.amount, self.currency.as_str()) == (order.amount, order.currency.as_str())
    }

    /// Returns whether the webhook is about a payment other than the order's.
    pub(crate) fn is_other_payment(&self, order: &Order) -> bool {
        order.payment.as_ref().is_some_and(|payment| *payment != self.payment)
    }

    /// Returns whether the webhook is a plain sale: the order awaits payment, the amount is right, and there is no other payment.
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
    /// Returns the `type` of the webhook.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "payment.succeeded",
            Self::Failed => "payment.failed",
            Self::Refunded => "payment.refunded",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        [Self::Succeeded, Self::Failed, Self::Refunded].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// What a webhook or a settled refund did. Each variant holds the order's state afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentOutcome {
    /// The order has a new state.
    Changed(OrderState),
    /// The order was already in this or a later state: nothing changed.
    Unchanged(OrderState),
    /// The webhook was received before.
    Repeated(OrderState),
    /// It concerns a surplus payment, which must be or has been refunded. The order is unchanged.
    Surplus(OrderState),
}

impl PaymentOutcome {
    pub const fn state(self) -> OrderState {
        match self {
            Self::Changed(state) | Self::Unchanged(state) | Self::Repeated(state) | Self::Surplus(state) => {
                state
            }
        }
    }
}

/// How a webhook changes an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sell the units, or find that a refund is due.
    Sell,
    Fail,
    /// Refund sold units.
    TakeBack,
    /// Refund an order without sold units.
    Void,
    Nothing,
}

impl OrderState {
    /// Returns what a webhook requires in this state. An order never returns to an earlier state, so the order of webhooks does not matter.
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

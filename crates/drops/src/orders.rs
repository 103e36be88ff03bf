//! Orders: a player pays for a reservation, and the payment provider reports the result by webhook.
//!
//! | state | reached by |
//! |---|---|
//! | PENDING | the player starts to pay |
//! | PAID | the provider confirmed: stock, order, entitlement and event in one transaction |
//! | REFUND_DUE | paid, but no units can be delivered: [`refunds_due`](Orders::refunds_due) lists it for operators |
//! | FAILED | the provider refused; the reservation is released |
//! | REFUNDED | the provider or an operator refunded; the entitlement is revoked, the units are available again |
//!
//! # Invariants
//! - **One transaction** for stock, reservation, order, entitlement, event and the provider's webhook id: all of it commits, or nothing.
//! - **Concurrent requests share a transaction** (ADR 18): payments of one drop that sell held units, and new orders. Any other webhook, and
//!   any request that a group cannot serve, gets its own transaction, with the same rules.
//! - **The lock order** is entitlement, order, reservation, stock, entry. The stock's row is locked right before the commit, so that it is
//!   held for one round trip. A group skips orders and reservations that another transaction has locked.
//! - **The order of webhooks does not matter.** A webhook moves an order only to a later state: FAILED, then PAID or REFUND_DUE, then
//!   REFUNDED. While there is stock, every permutation of webhooks ends in the same state, with the same counts.
//! - **An order has one payment.** A second one that succeeds is a surplus payment: recorded, published as an event, and listed until it is
//!   refunded.
//! - **The limit applies to late payments, too**: a payment beyond the limit is refunded.
//!
//! # Failure modes
//! A webhook whose transaction fails is not acknowledged, so the provider sends it again. Its id is recorded with its effect and kept for
//! the configured retention. After that a repeated webhook still changes nothing, since its effect is in the order's state.

mod confirm;
mod event;
mod grant;
mod group;
mod model;
mod pay;
mod refunds;
mod sell;
mod settle;
pub(crate) mod store;

use std::time::Duration;

use account::UserId;
use base::{Clock, Timestamp};
use db::{Db, Tx};
use entitlement::Entitlements;
use outbox::Outbox;
use runtime::telemetry::TraceContext;

use self::group::{PendingPayment, RequestBatchers};
use self::pay::NewOrder;
use crate::check;
use crate::error::Error;
use crate::stock::Stock;
use crate::{OrderId, ReservationId};

pub use event::{OrderChanged, PaymentChanged, events};
use model::SurplusState;
pub use model::{ListOrders, Order, OrderState, PaymentOutcome, Webhook, WebhookKind};
pub use refunds::{ListRefunds, RefundDue, RefundKey, RefundPage};

/// How many orders one page lists at most.
const MAX_LIST: u32 = 1_000;
/// The length of the columns that hold them.
const MAX_ID: usize = 255;
const MAX_ACTOR: usize = 100;
/// How many webhook ids one transaction removes.
const PRUNE_BATCH: u32 = 1_000;

/// The orders of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Orders {
    transactions: OrderTransactions,
    /// None: each request gets its own transaction.
    batchers: Option<RequestBatchers>,
}

/// Runs the transactions of orders.
#[derive(Clone, Debug)]
struct OrderTransactions {
    db: Db,
    stock: Stock,
    entitlements: Entitlements,
    outbox: Outbox,
    clock: Clock,
}

impl Orders {
    pub fn new(db: Db, stock: Stock, entitlements: Entitlements, outbox: Outbox, clock: Clock) -> Self {
        let transactions = OrderTransactions { db, stock, entitlements, outbox, clock };
        Self { batchers: Some(RequestBatchers::new(&transactions)), transactions }
    }

    /// Gives each request its own transaction. Tests and benchmarks compare batching with it.
    #[must_use]
    pub fn without_batching(self) -> Self {
        Self { batchers: None, ..self }
    }

    /// Returns how many payments wait for the previous group to finish.
    pub fn waiting_payments(&self) -> usize {
        self.batchers.as_ref().map_or(0, RequestBatchers::waiting)
    }

    /// Creates the order for `quantity` units of a reservation, or for all of it, at the current price. There is one order per reservation:
    /// a repeated call returns it.
    pub async fn pay(
        &self,
        user: UserId,
        reservation: ReservationId,
        quantity: Option<i64>,
    ) -> Result<Order, Error> {
        let request = NewOrder::new(user, reservation, quantity);
        if let Some(batchers) = &self.batchers
            && let Some(answer) = batchers.pay(request.clone()).await
        {
            return answer;
        }
        self.transactions.pay_alone(&request).await
    }

    /// Records a webhook of the payment provider, once per id. The caller has verified its signature.
    ///
    /// Fails without effect for an unknown order, a wrong amount or currency, or the refund of an unknown payment. A second successful
    /// payment for an order must be refunded: see [`refunds_due`](Self::refunds_due).
    pub async fn record(&self, webhook: &Webhook) -> Result<PaymentOutcome, Error> {
        check::text("id", &webhook.id, MAX_ID)?;
        check::text("payment_id", &webhook.payment, MAX_ID)?;
        if let Some(batchers) = &self.batchers {
            let order = self.find(webhook.order).await?.ok_or(Error::UnknownOrder(webhook.order))?;
            if webhook.sells(&order)
                && let Some(answer) = batchers.confirm(PendingPayment::new(webhook.clone(), order)).await
            {
                return answer;
            }
        }
        self.transactions.record_alone(webhook).await
    }

    /// Reads a user's order.
    pub async fn order(&self, user: UserId, id: OrderId) -> Result<Order, Error> {
        let found = self.find(id).await?.filter(|order| order.user == user);
        found.ok_or(Error::UnknownOrder(id))
    }

    /// Lists a user's orders that are older than `before`, the newest first.
    pub async fn list(&self, user: UserId, before: Option<OrderId>, limit: u32) -> Result<Vec<Order>, Error> {
        let reading = async {
            Ok(store::orders_of_user(
                &mut self.transactions.db.connection().await?,
                user,
                before,
                clamp_limit(limit),
            )
            .await?)
        };
        self.transactions.db.bounded(reading).await
    }

    /// Lists orders in a state, of all drops or of one, the oldest first.
    pub async fn in_state(&self, which: ListOrders) -> Result<Vec<Order>, Error> {
        let which = ListOrders { limit: clamp_limit(which.limit), ..which };
        let reading =
            async { Ok(store::in_state(&mut self.transactions.db.connection().await?, which).await?) };
        let found: Result<Vec<(Order, Timestamp)>, Error> = self.transactions.db.bounded(reading).await;
        Ok(found?.into_iter().map(|(order, _)| order).collect())
    }

    /// Removes the ids of webhooks that were received longer ago than `retention`. Returns how many.
    pub async fn prune_webhooks(&self, retention: Duration) -> Result<u64, Error> {
        let mut pruned = 0;
        loop {
            let db = &self.transactions.db;
            let pruning = || db.bounded(store::prune_webhooks(db, retention, PRUNE_BATCH));
            let removed = db::retry_conflicts(db::Error::is_conflict, pruning).await?;
            pruned += removed;
            if removed < u64::from(PRUNE_BATCH) {
                return Ok(pruned);
            }
        }
    }

    async fn find(&self, id: OrderId) -> Result<Option<Order>, Error> {
        self.transactions.find(id).await
    }
}

impl OrderTransactions {
    async fn find(&self, id: OrderId) -> Result<Option<Order>, Error> {
        self.db.bounded(async { Ok(store::find(&mut self.db.connection().await?, id).await?) }).await
    }

    /// Writes a changed order and its event at the commit. The transaction has locked the order's row.
    fn save(&self, tx: &mut Tx, order: &mut Order, resource: &str) -> Result<(), Error> {
        order.version += 1;
        store::save(tx, [&*order]);
        self.append(tx, [(&*order, trace().as_deref())], resource)
    }

    /// Appends one event per order, with its trace. The transaction has locked the orders' rows, or has just created them.
    fn append<'a>(
        &self,
        tx: &mut Tx,
        orders: impl IntoIterator<Item = (&'a Order, Option<&'a str>)>,
        resource: &str,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        let event = |(order, trace): (&Order, Option<&str>)| {
            Ok::<_, Error>((*order.user.as_uuid(), event::order_event(order, resource, trace, now)?))
        };
        let events = orders.into_iter().map(event).collect::<Result<Vec<_>, _>>()?;
        self.outbox.append(tx, &events);
        Ok(())
    }

    /// Appends the event of an order's surplus payment.
    fn append_surplus(
        &self,
        tx: &mut Tx,
        order: &Order,
        payment: &str,
        state: SurplusState,
    ) -> Result<(), Error> {
        let event = event::surplus_event(order, payment, state, trace().as_deref(), self.clock.now())?;
        self.outbox.append(tx, &[(*order.user.as_uuid(), event)]);
        Ok(())
    }
}

/// Returns the trace of the current request.
fn trace() -> Option<String> {
    TraceContext::current().traceparent().map(str::to_owned)
}

fn clamp_limit(limit: u32) -> u32 {
    limit.clamp(1, MAX_LIST)
}

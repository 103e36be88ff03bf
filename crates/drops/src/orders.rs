//! Orders: a player pays for a reservation, the payment provider says what came of it.
//!
//! | state | reached by |
//! |---|---|
//! | PENDING | the player goes on to pay |
//! | PAID | the provider confirmed: stock, order, entitlement and event in one transaction |
//! | REFUND_DUE | paid, but there is nothing to give: [`refunds_due`](Orders::refunds_due) lists it for operators |
//! | FAILED | the provider refused; the reservation is released |
//! | REFUNDED | the provider or an operator refunded; the entitlement is revoked, the units are available again |
//!
//! # Invariants
//! - **One transaction** for stock, reservation, order, entitlement, event and the provider's webhook id. All of it is true, or nothing is.
//! - **Requests that arrive together share a transaction** (ADR 18): payments of one drop that sell held units, and new orders. Any
//!   other webhook, and any request that a group cannot serve, has a transaction of its own, with the same rules.
//! - **The order of locks** is entitlement, order, reservation, stock, entry. The stock's row is locked right before the commit, so that
//!   it is held for one round trip. A group skips the orders and reservations that somebody else holds.
//! - **The order of arrival does not matter.** A webhook changes an order only to a later state: FAILED, then PAID or REFUND_DUE, then REFUNDED.
//!   As long as there is stock, every permutation of webhooks ends in the same state, with the same counts.
//! - **An order has one payment.** Another one that succeeds is a surplus payment: recorded, announced by an event, and listed until it is
//!   refunded.
//! - **A limit holds for late payments, too**: units that a player may not have are refunded.
//!
//! # Failure modes
//! A webhook whose transaction fails is not acknowledged, so the provider sends it again. Its id is recorded with its effect, and kept for
//! the configured retention. After that a repetition changes nothing either: its effect is in the order's state.

mod confirm;
mod event;
mod grant;
mod group;
mod model;
mod pay;
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

use self::group::{Groups, Payment};
use self::pay::NewOrder;
use crate::check;
use crate::error::Error;
use crate::stock::Stock;
use crate::{OrderId, ReservationId};

pub use event::{OrderChanged, PaymentChanged, events};
use model::SurplusState;
pub use model::{ListOrders, Order, OrderState, Outcome, RefundDue, Webhook, WebhookKind};

/// How many orders a list may have.
const MAX_LIST: u32 = 1_000;
/// As long as the columns that hold them.
const MAX_ID: usize = 255;
const MAX_ACTOR: usize = 100;
/// How many webhooks are removed with one transaction.
const PRUNE_AT_ONCE: u32 = 1_000;

/// The orders of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Orders {
    recorder: Recorder,
    /// None: each request has a transaction of its own.
    groups: Option<Groups>,
}

/// The transactions of orders.
#[derive(Clone, Debug)]
struct Recorder {
    db: Db,
    stock: Stock,
    entitlements: Entitlements,
    outbox: Outbox,
    clock: Clock,
}

impl Orders {
    pub fn new(db: Db, stock: Stock, entitlements: Entitlements, outbox: Outbox, clock: Clock) -> Self {
        let recorder = Recorder { db, stock, entitlements, outbox, clock };
        Self { groups: Some(Groups::new(&recorder)), recorder }
    }

    /// Gives each request a transaction of its own: what groups are compared with.
    #[must_use]
    pub fn one_by_one(self) -> Self {
        Self { groups: None, ..self }
    }

    /// Returns how many payments wait for the group before theirs.
    pub fn waiting_payments(&self) -> usize {
        self.groups.as_ref().map_or(0, Groups::waiting)
    }

    /// Orders `quantity` units of a reservation, or all of it. The amount is their price as it is now. There is one order per reservation:
    /// asking again returns it.
    pub async fn pay(
        &self,
        user: UserId,
        reservation: ReservationId,
        quantity: Option<i64>,
    ) -> Result<Order, Error> {
        let request = NewOrder::new(user, reservation, quantity);
        if let Some(groups) = &self.groups
            && let Some(answer) = groups.pay(request.clone()).await
        {
            return answer;
        }
        self.recorder.pay_alone(&request).await
    }

    /// Records a webhook of the payment provider, once per id. The caller has verified who sent it.
    ///
    /// Refused without effect: an unknown order, a wrong amount or currency, the refund of a payment that is not known. A second payment
    /// that succeeds for an order must be refunded: see [`refunds_due`](Self::refunds_due).
    pub async fn record(&self, webhook: &Webhook) -> Result<Outcome, Error> {
        check::text("id", &webhook.id, MAX_ID)?;
        check::text("payment_id", &webhook.payment, MAX_ID)?;
        if let Some(groups) = &self.groups {
            let order = self.find(webhook.order).await?.ok_or(Error::UnknownOrder(webhook.order))?;
            if webhook.sells(&order)
                && let Some(answer) = groups.confirm(Payment::new(webhook.clone(), order)).await
            {
                return answer;
            }
        }
        self.recorder.record_alone(webhook).await
    }

    /// Reads an order of a user.
    pub async fn order(&self, user: UserId, id: OrderId) -> Result<Order, Error> {
        let found = self.find(id).await?.filter(|order| order.user == user);
        found.ok_or(Error::UnknownOrder(id))
    }

    /// Lists the orders of a user that are older than `before`, the newest first.
    pub async fn list(&self, user: UserId, before: Option<OrderId>, limit: u32) -> Result<Vec<Order>, Error> {
        let reading = async {
            Ok(store::of_user(&mut self.recorder.db.connection().await?, user, before, limited(limit))
                .await?)
        };
        self.recorder.db.bounded(reading).await
    }

    /// Lists orders in a state, of all drops or of one, the oldest first.
    pub async fn in_state(&self, which: ListOrders) -> Result<Vec<Order>, Error> {
        let which = ListOrders { limit: limited(which.limit), ..which };
        let reading = async { Ok(store::in_state(&mut self.recorder.db.connection().await?, which).await?) };
        let found: Result<Vec<(Order, Timestamp)>, Error> = self.recorder.db.bounded(reading).await;
        Ok(found?.into_iter().map(|(order, _)| order).collect())
    }

    /// Forgets webhooks that were received longer ago than `retention`. Returns how many.
    pub async fn prune_webhooks(&self, retention: Duration) -> Result<u64, Error> {
        let mut pruned = 0;
        loop {
            let db = &self.recorder.db;
            let pruning = || db.bounded(store::prune_webhooks(db, retention, PRUNE_AT_ONCE));
            let some = db::retrying(db::Error::is_conflict, pruning).await?;
            pruned += some;
            if some < u64::from(PRUNE_AT_ONCE) {
                return Ok(pruned);
            }
        }
    }

    async fn find(&self, id: OrderId) -> Result<Option<Order>, Error> {
        self.recorder.find(id).await
    }
}

impl Recorder {
    async fn find(&self, id: OrderId) -> Result<Option<Order>, Error> {
        self.db.bounded(async { Ok(store::find(&mut self.db.connection().await?, id).await?) }).await
    }

    /// Writes a changed order whose row the transaction holds, with its event, at the commit.
    fn save(&self, tx: &mut Tx, order: &mut Order, resource: &str) -> Result<(), Error> {
        order.version += 1;
        store::save(tx, [&*order]);
        self.append(tx, [(&*order, trace().as_deref())], resource)
    }

    /// Appends the events of orders as they are now, each with its trace. The transaction holds the orders' rows, or nobody else knows the
    /// orders yet.
    fn append<'a>(
        &self,
        tx: &mut Tx,
        orders: impl IntoIterator<Item = (&'a Order, Option<&'a str>)>,
        resource: &str,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        let event = |(order, trace): (&Order, Option<&str>)| {
            Ok::<_, Error>((*order.user.as_uuid(), event::of(order, resource, trace, now)?))
        };
        let events = orders.into_iter().map(event).collect::<Result<Vec<_>, _>>()?;
        self.outbox.append(tx, &events);
        Ok(())
    }

    /// Appends the event of a surplus payment of an order.
    fn append_surplus(
        &self,
        tx: &mut Tx,
        order: &Order,
        payment: &str,
        state: SurplusState,
    ) -> Result<(), Error> {
        let event = event::of_surplus(order, payment, state, trace().as_deref(), self.clock.now())?;
        self.outbox.append(tx, &[(*order.user.as_uuid(), event)]);
        Ok(())
    }
}

/// The trace that the current request belongs to.
fn trace() -> Option<String> {
    TraceContext::current().traceparent().map(str::to_owned)
}

fn limited(limit: u32) -> u32 {
    limit.clamp(1, MAX_LIST)
}

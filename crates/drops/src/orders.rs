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
//! - **The order of locks** is entitlement, order, reservation, entry, stock. The stock's row is last, so that it is held for one round
//!   trip. A late payment locks the stock before the entry, since the stock decides. Where that meets another transaction, the database
//!   ends one of the two and it is repeated.
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
mod model;
mod settle;
pub(crate) mod store;

use std::time::Duration;

use account::UserId;
use base::{Clock, Timestamp};
use db::{Db, Tx};
use entitlement::Entitlements;
use outbox::Outbox;
use runtime::fault;

use crate::error::Error;
use crate::stock::{self, ReservationState, Stock};
use crate::{OrderId, ReservationId};

pub use event::{OrderChanged, PaymentChanged, events};
use model::SurplusState;
pub use model::{ListOrders, Order, OrderState, Outcome, RefundDue, Webhook, WebhookKind};

/// How many orders a list may have.
const MAX_LIST: u32 = 1_000;
/// As long as the columns that hold it.
const MAX_ACTOR: usize = 100;
/// How many webhooks are removed with one transaction.
const PRUNE_AT_ONCE: u32 = 1_000;

/// The orders of all drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Orders {
    db: Db,
    stock: Stock,
    entitlements: Entitlements,
    outbox: Outbox,
    clock: Clock,
}

impl Orders {
    pub fn new(db: Db, stock: Stock, entitlements: Entitlements, outbox: Outbox, clock: Clock) -> Self {
        Self { db, stock, entitlements, outbox, clock }
    }

    /// Orders `quantity` units of a reservation, or all of it. The amount is their price as it is now. There is one order per reservation:
    /// asking again returns it.
    pub async fn pay(
        &self,
        user: UserId,
        reservation: ReservationId,
        quantity: Option<i64>,
    ) -> Result<Order, Error> {
        db::retrying(Error::is_conflict, || self.db.bounded(self.try_pay(user, reservation, quantity))).await
    }

    async fn try_pay(&self, user: UserId, id: ReservationId, quantity: Option<i64>) -> Result<Order, Error> {
        let mut tx = self.db.begin().await?;
        let found = stock::store::lock(&mut tx, id).await?.filter(|(found, _)| found.user == user);
        let (reservation, has_ended) = found.ok_or(Error::UnknownReservation(id))?;
        // The reservation is locked before its order is written, so there is one order.
        if let Some(order) = store::of_reservation(&mut tx, id).await? {
            return match quantity {
                Some(quantity) if quantity != order.quantity => {
                    Err(Error::OtherQuantity { ordered: order.quantity })
                }
                _ => Ok(order),
            };
        }
        let quantity = quantity.unwrap_or(reservation.quantity);
        if !(1..=reservation.quantity).contains(&quantity) {
            let what = format!("is 1 to {}, not {quantity}", reservation.quantity);
            return Err(Error::Invalid { field: "quantity", what });
        }
        if reservation.state != ReservationState::Held || has_ended {
            return Err(Error::ReservationEnded(id));
        }
        let sale = stock::store::sale_in(&mut tx, reservation.drop).await?;
        let sale = sale.ok_or(Error::NoSuchDrop(reservation.drop))?;
        let too_much =
            || Error::Invalid { field: "quantity", what: "costs more than can be paid".to_owned() };
        let order = Order {
            id: OrderId::generate(),
            drop: reservation.drop,
            reservation: id,
            user,
            account: reservation.account,
            state: OrderState::Pending,
            quantity,
            amount: sale.price.checked_mul(quantity).ok_or_else(too_much)?,
            currency: sale.currency,
            payment: None,
            granted_at: None,
            settled_by: None,
            created_at: self.clock.now(),
            version: 1,
        };
        store::add(&mut tx, &order);
        self.append(&mut tx, &order, &sale.resource)?;
        fault::point("drops.pay.uncommitted");
        tx.commit().await?;
        fault::point("drops.pay.committed");
        Ok(order)
    }

    /// Reads an order of a user.
    pub async fn order(&self, user: UserId, id: OrderId) -> Result<Order, Error> {
        let found = self.find(id).await?.filter(|order| order.user == user);
        found.ok_or(Error::UnknownOrder(id))
    }

    /// Lists the orders of a user that are older than `before`, the newest first.
    pub async fn list(&self, user: UserId, before: Option<OrderId>, limit: u32) -> Result<Vec<Order>, Error> {
        let reading = async {
            Ok(store::of_user(&mut self.db.connection().await?, user, before, limited(limit)).await?)
        };
        self.db.bounded(reading).await
    }

    /// Lists orders in a state, of all drops or of one, the oldest first.
    pub async fn in_state(&self, which: ListOrders) -> Result<Vec<Order>, Error> {
        let which = ListOrders { limit: limited(which.limit), ..which };
        let reading = async { Ok(store::in_state(&mut self.db.connection().await?, which).await?) };
        let found: Result<Vec<(Order, Timestamp)>, Error> = self.db.bounded(reading).await;
        Ok(found?.into_iter().map(|(order, _)| order).collect())
    }

    /// Forgets webhooks that were received longer ago than `retention`. Returns how many.
    pub async fn prune_webhooks(&self, retention: Duration) -> Result<u64, Error> {
        let mut pruned = 0;
        loop {
            let pruning = || self.db.bounded(store::prune_webhooks(&self.db, retention, PRUNE_AT_ONCE));
            let some = db::retrying(db::Error::is_conflict, pruning).await?;
            pruned += some;
            if some < u64::from(PRUNE_AT_ONCE) {
                return Ok(pruned);
            }
        }
    }

    async fn find(&self, id: OrderId) -> Result<Option<Order>, Error> {
        self.db.bounded(async { Ok(store::find(&mut self.db.connection().await?, id).await?) }).await
    }

    /// Writes a changed order whose row the transaction holds, with its event.
    async fn save(&self, tx: &mut Tx, order: &mut Order, resource: &str) -> Result<(), Error> {
        order.version += 1;
        store::update(tx, order).await?;
        self.append(tx, order, resource)
    }

    /// Appends the event of an order as it is now. The transaction holds the order's row, or nobody else knows the order yet.
    fn append(&self, tx: &mut Tx, order: &Order, resource: &str) -> Result<(), Error> {
        let event = event::of(order, resource, self.clock.now())?;
        self.outbox.append(tx, &[(*order.user.as_uuid(), event)]);
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
        let event = event::of_surplus(order, payment, state, self.clock.now())?;
        self.outbox.append(tx, &[(*order.user.as_uuid(), event)]);
        Ok(())
    }
}

fn limited(limit: u32) -> u32 {
    limit.clamp(1, MAX_LIST)
}

//! Orders: a player pays for a reservation, the payment provider says what came of it.
//!
//! | state | reached by |
//! |---|---|
//! | PENDING | the player goes on to pay |
//! | PAID | the provider confirmed: stock, order, entitlement and event in one transaction |
//! | REFUND_DUE | paid, but there is nothing to give: [`refunds_due`](Orders::refunds_due) lists them for operators |
//! | FAILED | the provider refused; the reservation is released |
//! | REFUNDED | the provider refunded; the entitlement is revoked, the units are available again |
//!
//! # Invariants
//! - **One transaction** for stock, reservation, order, entitlement, event and the provider's webhook id. All of it is true, or nothing is.
//! - **The order of locks** is entitlement, order, reservation, stock. The stock's row is last, so that it is held for one round trip.
//! - **The order of arrival does not matter.** A message changes an order only to a later state: FAILED, then PAID or REFUND_DUE, then REFUNDED.
//!   As long as there is stock, every permutation of messages ends in the same state, with the same counts.
//! - **A limit holds for late payments, too**: units that a player may not have are refunded.
//!
//! # Failure modes
//! A message whose transaction fails is not acknowledged, so the provider sends it again. Its id is recorded with its effect.

mod confirm;
mod event;
mod model;
pub(crate) mod store;

use account::UserId;
use base::Clock;
use db::{Db, Tx};
use entitlement::Entitlements;
use outbox::Outbox;
use runtime::fault;

use crate::error::Error;
use crate::stock::{self, ReservationState, Stock};
use crate::{OrderId, ReservationId};

pub use event::{OrderChanged, events};
pub use model::{Notice, NoticeKind, Order, OrderState, Outcome};

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
        let quantity = quantity.unwrap_or(reservation.quantity);
        // Those who order lock the reservation first, so there is one of them.
        if let Some(order) = store::of_reservation(&mut tx, id).await? {
            return match order.quantity == quantity {
                true => Ok(order),
                false => Err(Error::OtherQuantity { ordered: order.quantity }),
            };
        }
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
            created_at: self.clock.now(),
            version: 1,
        };
        store::add(&mut tx, &order);
        self.append(&mut tx, &order)?;
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

    /// Lists the orders of a user, the newest first.
    pub async fn list(&self, user: UserId, limit: u32) -> Result<Vec<Order>, Error> {
        let reading = async { Ok(store::of_user(&mut self.db.connection().await?, user, limit).await?) };
        self.db.bounded(reading).await
    }

    /// Lists the orders that operators have to refund, the oldest first. A refund at the provider ends them: its webhook says so.
    pub async fn refunds_due(&self, limit: u32) -> Result<Vec<Order>, Error> {
        let reading = async {
            let mut connection = self.db.connection().await?;
            Ok(store::in_state(&mut connection, OrderState::RefundDue, limit).await?)
        };
        self.db.bounded(reading).await
    }

    async fn find(&self, id: OrderId) -> Result<Option<Order>, Error> {
        self.db.bounded(async { Ok(store::find(&mut self.db.connection().await?, id).await?) }).await
    }

    /// Appends the event of an order as it is now. The transaction holds the order's row, or nobody else knows the order yet.
    fn append(&self, tx: &mut Tx, order: &Order) -> Result<(), Error> {
        let event = event::of(order, self.clock.now())?;
        self.outbox.append(tx, &[(*order.user.as_uuid(), event)]);
        Ok(())
    }
}

//! Creates orders: in their own transaction, or batched.

use std::collections::HashMap;

use account::UserId;
use base::Timestamp;
use runtime::fault;

use super::model::{Order, OrderState};
use super::{OrderTransactions, store, trace};
use crate::error::Error;
use crate::stock::store::HeldFilter;
use crate::stock::{self, Reservation, ReservationState, Sale};
use crate::{OrderId, ReservationId};

/// A request to create the order for a reservation.
#[derive(Clone, Debug)]
pub(super) struct NewOrder {
    user: UserId,
    reservation: ReservationId,
    /// None: all units of the reservation.
    quantity: Option<i64>,
    /// The trace of the request.
    trace: Option<String>,
}

impl NewOrder {
    pub(super) fn new(user: UserId, reservation: ReservationId, quantity: Option<i64>) -> Self {
        Self { user, reservation, quantity, trace: trace() }
    }

    /// Builds the order for a held reservation.
    fn order(&self, reservation: &Reservation, sale: &Sale, now: Timestamp) -> Result<Order, Error> {
        let quantity = self.quantity_of(reservation)?;
        let too_much =
            || Error::Invalid { field: "quantity", what: "is too large: the amount overflows".to_owned() };
        Ok(Order {
            id: OrderId::generate(),
            drop: reservation.drop,
            reservation: reservation.id,
            user: self.user,
            account: reservation.account,
            state: OrderState::Pending,
            quantity,
            amount: sale.price.checked_mul(quantity).ok_or_else(too_much)?,
            currency: sale.currency.clone(),
            payment: None,
            granted_at: None,
            settled_by: None,
            created_at: now,
            version: 1,
        })
    }

    fn quantity_of(&self, reservation: &Reservation) -> Result<i64, Error> {
        let quantity = self.quantity.unwrap_or(reservation.quantity);
        if (1..=reservation.quantity).contains(&quantity) {
            return Ok(quantity);
        }
        let what = format!("must be 1 to {}, not {quantity}", reservation.quantity);
        Err(Error::Invalid { field: "quantity", what })
    }
}

impl OrderTransactions {
    /// Creates an order in its own transaction.
    pub(super) async fn pay_alone(&self, request: &NewOrder) -> Result<Order, Error> {
        db::retry_conflicts(Error::is_conflict, || self.db.bounded(self.try_pay(request))).await
    }

    async fn try_pay(&self, request: &NewOrder) -> Result<Order, Error> {
        let id = request.reservation;
        let mut tx = self.db.begin().await?;
        let found = stock::store::lock(&mut tx, id).await?.filter(|(found, _)| found.user == request.user);
        let (reservation, has_ended) = found.ok_or(Error::UnknownReservation(id))?;
        // The reservation is locked, so no second order can be created meanwhile.
        if let Some(order) = store::find_by_reservation(&mut tx, id).await? {
            return match request.quantity {
                Some(quantity) if quantity != order.quantity => {
                    Err(Error::OtherQuantity { ordered: order.quantity })
                }
                _ => Ok(order),
            };
        }
        request.quantity_of(&reservation)?;
        if reservation.state != ReservationState::Held || has_ended {
            return Err(Error::ReservationEnded(id));
        }
        let sale = stock::store::sale_in(&mut tx, reservation.drop).await?;
        let sale = sale.ok_or(Error::NoSuchDrop(reservation.drop))?;
        let order = request.order(&reservation, &sale, self.clock.now())?;
        store::add(&mut tx, [&order]);
        self.append(&mut tx, [(&order, request.trace.as_deref())], &sale.resource)?;
        fault::point("drops.pay.uncommitted");
        tx.commit().await?;
        fault::point("drops.pay.committed");
        Ok(order)
    }

    /// Creates orders in one transaction. Returns none for a request that needs its own transaction: its reservation has an order, has ended,
    /// or is locked by another transaction.
    ///
    /// It takes five round trips: begin, reservations, their orders, drops, commit.
    pub(super) async fn pay_group(&self, requests: &[NewOrder]) -> Result<Vec<Option<Order>>, Error> {
        let mut tx = self.db.begin().await?;
        let ids: Vec<ReservationId> = requests.iter().map(|request| request.reservation).collect();
        let held = stock::store::lock_held(&mut tx, &ids, HeldFilter::InTime).await?;
        if held.is_empty() {
            tx.rollback().await?;
            return Ok(requests.iter().map(|_| None).collect());
        }
        let ids: Vec<ReservationId> = held.iter().map(|reservation| reservation.id).collect();
        let ordered = store::reservations_with_orders(&mut tx, &ids).await?;
        let mut drops: Vec<_> = held.iter().map(|reservation| reservation.drop).collect();
        drops.sort_unstable();
        drops.dedup();
        let sales = stock::store::sales_in(&mut tx, &drops).await?;
        let now = self.clock.now();
        let free = held.into_iter().filter(|reservation| !ordered.contains(&reservation.id));
        let mut free: HashMap<ReservationId, Reservation> = free.map(|free| (free.id, free)).collect();
        let orders: Vec<Option<Order>> = requests
            .iter()
            .map(|request| {
                let reservation = free.get(&request.reservation).filter(|free| free.user == request.user)?;
                let order = request.order(reservation, sales.get(&reservation.drop)?, now).ok()?;
                // A second request for the same reservation gets its own transaction and finds this order.
                free.remove(&request.reservation);
                Some(order)
            })
            .collect();
        let new = orders.iter().zip(requests).filter_map(|(order, request)| Some((order.as_ref()?, request)));
        let new: Vec<(&Order, &NewOrder)> = new.collect();
        if new.is_empty() {
            tx.rollback().await?;
            return Ok(orders);
        }
        store::add(&mut tx, new.iter().map(|(order, _)| *order));
        for (drop, sale) in &sales {
            let of_drop = new.iter().filter(|(order, _)| order.drop == *drop);
            let of_drop = of_drop.map(|(order, request)| (*order, request.trace.as_deref()));
            self.append(&mut tx, of_drop, &sale.resource)?;
        }
        fault::point("drops.pay.uncommitted");
        tx.commit().await?;
        fault::point("drops.pay.committed");
        Ok(orders)
    }
}

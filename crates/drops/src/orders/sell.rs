//! What an order does to the stock.

use account::UserId;
use base::Timestamp;
use db::Tx;
use runtime::fault;

use super::Recorder;
use super::model::{Order, OrderState};
use crate::error::Error;
use crate::stock::{self, Movement, Reservation, ReservationState, Sale};

/// An order and its reservation, whose rows the transaction holds.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) order: Order,
    pub(super) reservation: Reservation,
    /// The trace of what happens to it.
    pub(super) trace: Option<String>,
}

/// What became of an order.
pub(super) enum Sold {
    As(OrderState),
    /// The account's entitlement was changed by a shop whose clock is ahead. Repeat with a later time than this.
    Superseded(Timestamp),
}

/// Whether units were granted.
#[derive(Debug)]
pub(super) enum Granted {
    Yes,
    /// They never will be: the account is gone, or owns the resource in a way that does not count.
    Refused(entitlement::Error),
    /// Something newer than the grant is known. Repeat with a later time than this.
    Superseded(Timestamp),
}

impl Recorder {
    /// Sells the units of an order: those of its reservation, or others if that has ended and there are some.
    pub(super) async fn sell(
        &self,
        tx: &mut Tx,
        case: &mut Case,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Sold, Error> {
        if case.reservation.state != ReservationState::Held {
            return self.sell_late(tx, case, sale, at).await;
        }
        let granted = self.sell_held(tx, std::slice::from_mut(case), sale, at).await?.pop();
        match granted.ok_or(Error::NoAnswer)? {
            Granted::Yes => Ok(Sold::As(OrderState::Paid)),
            Granted::Superseded(newest) => Ok(Sold::Superseded(newest)),
            Granted::Refused(cause) => {
                refund_due(&case.order, &cause.to_string());
                Ok(Sold::As(self.release(tx, case, OrderState::RefundDue).await?))
            }
        }
    }

    /// Sells the units of held reservations of one drop. A case whose units are not granted has had no effect.
    pub(super) async fn sell_held(
        &self,
        tx: &mut Tx,
        cases: &mut [Case],
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Vec<Granted>, Error> {
        let granted = self.grant_units(tx, cases, sale, at).await?;
        let sold = cases.iter().zip(&granted).filter(|(_, granted)| matches!(granted, Granted::Yes));
        let sold: Vec<&Case> = sold.map(|(case, _)| case).collect();
        let Some(drop) = sold.first().map(|case| case.order.drop) else { return Ok(granted) };
        let leaving = leaving(tx, sold.iter().map(|case| &case.order), sale).await?;
        fault::point("drops.order.granted");
        let mut stock = stock::lock(tx, drop).await?;
        for Case { order, reservation, .. } in &sold {
            let movement =
                Movement::Sell { units: order.quantity, rest: reservation.quantity - order.quantity };
            stock::require(stock.move_units(movement, Some(reservation.id)), drop)?;
        }
        let units: Vec<_> = sold.iter().map(|case| (case.reservation.id, case.order.quantity)).collect();
        stock::store::confirm(tx, &units);
        stock::store::leave(tx, drop, &leaving);
        self.stock.save(tx, drop, stock);
        Ok(granted)
    }

    /// Sells units although the reservation has ended. The stock decides, so its row is locked before anything is changed.
    async fn sell_late(
        &self,
        tx: &mut Tx,
        case: &mut Case,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Sold, Error> {
        let Case { order, reservation, .. } = &*case;
        let units = order.quantity;
        let mut stock = stock::lock(tx, order.drop).await?;
        let taken = stock::store::units_of_user(tx, order.user, order.drop).await?;
        if taken + units > sale.limit {
            refund_due(order, "the player has or holds as many units as they may");
            return Ok(Sold::As(OrderState::RefundDue));
        }
        if !stock.move_units(Movement::SellLate(units), Some(reservation.id)) {
            refund_due(order, "the reservation had ended and there are not enough units");
            return Ok(Sold::As(OrderState::RefundDue));
        }
        let granted = self.grant_units(tx, std::slice::from_mut(case), sale, at).await?.pop();
        let Case { order, reservation, .. } = &*case;
        match granted.ok_or(Error::NoAnswer)? {
            Granted::Yes => {}
            Granted::Superseded(newest) => return Ok(Sold::Superseded(newest)),
            Granted::Refused(cause) => {
                refund_due(order, &cause.to_string());
                return Ok(Sold::As(OrderState::RefundDue));
            }
        }
        let leaving = leaving(tx, [order], sale).await?;
        fault::point("drops.order.granted");
        stock::store::confirm(tx, &[(reservation.id, units)]);
        stock::store::leave(tx, order.drop, &leaving);
        self.stock.save(tx, order.drop, stock);
        Ok(Sold::As(OrderState::Paid))
    }

    /// Takes back what a paid order gave: the entitlement is revoked and the units are available again.
    pub(super) async fn take_back(
        &self,
        tx: &mut Tx,
        Case { order, reservation, .. }: &Case,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<OrderState, Error> {
        if !self.revoke_units(tx, order, sale, at).await? {
            tracing::warn!(order = %order.id, "a refunded order has nothing to revoke");
        }
        stock::store::take_back(tx, reservation.id).await?;
        self.stock.move_in(tx, order.drop, Movement::Refund(order.quantity), Some(reservation.id)).await?;
        Ok(OrderState::Refunded)
    }

    /// Releases the reservation of an order if it is still held.
    pub(super) async fn release(
        &self,
        tx: &mut Tx,
        case: &Case,
        state: OrderState,
    ) -> Result<OrderState, Error> {
        if case.reservation.state == ReservationState::Held {
            self.stock.release_in(tx, &case.reservation).await?;
        }
        Ok(state)
    }
}

/// Returns the players who have bought all they may with these orders of one drop, which are not confirmed yet.
async fn leaving<'a>(
    tx: &mut Tx,
    orders: impl IntoIterator<Item = &'a Order>,
    sale: &Sale,
) -> Result<Vec<UserId>, Error> {
    let orders: Vec<&Order> = orders.into_iter().collect();
    let Some(drop) = orders.first().map(|order| order.drop) else { return Ok(Vec::new()) };
    let mut users: Vec<UserId> = orders.iter().map(|order| order.user).collect();
    users.sort_unstable();
    users.dedup();
    let mut owned = stock::store::owned_by_users(tx, drop, &users).await?;
    for order in orders {
        *owned.entry(order.user).or_default() += order.quantity;
    }
    users.retain(|user| owned.get(user).is_some_and(|units| *units >= sale.limit));
    Ok(users)
}

pub(super) fn refund_due(order: &Order, cause: &str) {
    tracing::warn!(order = %order.id, drop = %order.drop, cause, "a payment must be refunded");
}

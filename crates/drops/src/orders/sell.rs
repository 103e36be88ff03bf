//! Sells, refunds and releases the units of orders.

use account::UserId;
use base::Timestamp;
use db::Tx;
use runtime::fault;

use super::OrderTransactions;
use super::model::{Order, OrderState};
use crate::error::Error;
use crate::stock::{self, Movement, Reservation, ReservationState, Sale};

/// An order and its reservation, whose rows the transaction has locked.
#[derive(Debug)]
pub(super) struct LockedOrder {
    pub(super) order: Order,
    pub(super) reservation: Reservation,
    /// The trace of the request.
    pub(super) trace: Option<String>,
}

/// The result of a sale.
pub(super) enum SaleResult {
    NewState(OrderState),
    /// Another shop, whose clock is ahead, changed the account's entitlement at this time. Retry with a later time.
    Superseded(Timestamp),
}

/// The result of a grant.
#[derive(Debug)]
pub(super) enum GrantResult {
    Granted,
    /// Permanently refused: the account no longer exists, or owns the resource without a quantity.
    Refused(entitlement::Error),
    /// The entitlement has a newer change, made at this time. Retry with a later time.
    Superseded(Timestamp),
}

impl OrderTransactions {
    /// Sells the units of an order: those of its reservation, or available ones if the reservation has ended.
    pub(super) async fn sell(
        &self,
        tx: &mut Tx,
        locked: &mut LockedOrder,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<SaleResult, Error> {
        if locked.reservation.state != ReservationState::Held {
            return self.sell_late(tx, locked, sale, at).await;
        }
        let granted = self.sell_held(tx, std::slice::from_mut(locked), sale, at).await?.pop();
        match granted.ok_or(Error::NoBatchResult)? {
            GrantResult::Granted => Ok(SaleResult::NewState(OrderState::Paid)),
            GrantResult::Superseded(newest) => Ok(SaleResult::Superseded(newest)),
            GrantResult::Refused(cause) => {
                log_refund_due(&locked.order, &cause.to_string());
                Ok(SaleResult::NewState(self.release(tx, locked, OrderState::RefundDue).await?))
            }
        }
    }

    /// Sells the units of held reservations of one drop. An order whose units are not granted is unchanged.
    pub(super) async fn sell_held(
        &self,
        tx: &mut Tx,
        locked_orders: &mut [LockedOrder],
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Vec<GrantResult>, Error> {
        let granted = self.grant_units(tx, locked_orders, sale, at).await?;
        let sold =
            locked_orders.iter().zip(&granted).filter(|(_, granted)| matches!(granted, GrantResult::Granted));
        let sold: Vec<&LockedOrder> = sold.map(|(locked, _)| locked).collect();
        let Some(drop) = sold.first().map(|locked| locked.order.drop) else { return Ok(granted) };
        let leaving = leaving(tx, sold.iter().map(|locked| &locked.order), sale).await?;
        fault::point("drops.order.granted");
        let mut stock = stock::lock(tx, drop).await?;
        for LockedOrder { order, reservation, .. } in &sold {
            let movement =
                Movement::Sell { units: order.quantity, rest: reservation.quantity - order.quantity };
            stock::require_moved(stock.move_units(movement, Some(reservation.id)), drop)?;
        }
        let units: Vec<_> =
            sold.iter().map(|locked| (locked.reservation.id, locked.order.quantity)).collect();
        stock::store::confirm(tx, &units);
        stock::store::leave_at_commit(tx, drop, &leaving);
        self.stock.save(tx, drop, stock);
        Ok(granted)
    }

    /// Sells available units because the reservation has ended. Whether there are enough depends on the stock, so its row is locked first.
    async fn sell_late(
        &self,
        tx: &mut Tx,
        locked: &mut LockedOrder,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<SaleResult, Error> {
        let LockedOrder { order, reservation, .. } = &*locked;
        let units = order.quantity;
        let mut stock = stock::lock(tx, order.drop).await?;
        let taken = stock::store::units_of_user(tx, order.user, order.drop).await?;
        if taken + units > sale.limit {
            log_refund_due(order, "the player would own or hold more units than the limit allows");
            return Ok(SaleResult::NewState(OrderState::RefundDue));
        }
        if !stock.move_units(Movement::SellLate(units), Some(reservation.id)) {
            log_refund_due(order, "the reservation had ended and too few units are available");
            return Ok(SaleResult::NewState(OrderState::RefundDue));
        }
        let granted = self.grant_units(tx, std::slice::from_mut(locked), sale, at).await?.pop();
        let LockedOrder { order, reservation, .. } = &*locked;
        match granted.ok_or(Error::NoBatchResult)? {
            GrantResult::Granted => {}
            GrantResult::Superseded(newest) => return Ok(SaleResult::Superseded(newest)),
            GrantResult::Refused(cause) => {
                log_refund_due(order, &cause.to_string());
                return Ok(SaleResult::NewState(OrderState::RefundDue));
            }
        }
        let leaving = leaving(tx, [order], sale).await?;
        fault::point("drops.order.granted");
        stock::store::confirm(tx, &[(reservation.id, units)]);
        stock::store::leave_at_commit(tx, order.drop, &leaving);
        self.stock.save(tx, order.drop, stock);
        Ok(SaleResult::NewState(OrderState::Paid))
    }

    /// Refunds a paid order: revokes the entitlement and makes the units available again.
    pub(super) async fn take_back(
        &self,
        tx: &mut Tx,
        LockedOrder { order, reservation, .. }: &LockedOrder,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<OrderState, Error> {
        if !self.revoke_units(tx, order, sale, at).await? {
            tracing::warn!(order = %order.id, "nothing to revoke for a refunded order: the account no longer has its units");
        }
        stock::store::clear_confirmed(tx, reservation.id).await?;
        self.stock.move_in(tx, order.drop, Movement::Refund(order.quantity), Some(reservation.id)).await?;
        Ok(OrderState::Refunded)
    }

    /// Releases the reservation of an order if it is still held.
    pub(super) async fn release(
        &self,
        tx: &mut Tx,
        locked: &LockedOrder,
        state: OrderState,
    ) -> Result<OrderState, Error> {
        if locked.reservation.state == ReservationState::Held {
            self.stock.release_in(tx, &locked.reservation).await?;
        }
        Ok(state)
    }
}

/// Returns the players who reach the limit with these orders of one drop. The orders are not confirmed yet.
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

/// Logs that an operator must refund a payment.
pub(super) fn log_refund_due(order: &Order, cause: &str) {
    tracing::warn!(order = %order.id, drop = %order.drop, cause, "an operator must refund a payment; see `playhouse drops refunds`");
}

//! What the payment provider's webhooks do to orders.

use std::time::Duration;

use base::Timestamp;
use db::Tx;
use runtime::fault;

use super::grant::{Granted, grant};
use super::model::{Order, OrderState, Outcome, Step, SurplusState, Webhook, WebhookKind};
use super::{Orders, store};
use crate::check;
use crate::error::Error;
use crate::stock::{self, Movement, Reservation, ReservationState, Sale};

/// As long as the columns that hold them.
const MAX_ID: usize = 255;

/// How an attempt ended.
enum Attempt {
    /// To be committed.
    Done(Outcome),
    /// Nothing was written.
    Nothing(Outcome),
    /// The account's entitlement was changed by a shop whose clock is ahead. Repeat with a later time than this.
    Superseded(Timestamp),
    /// The user was erased between the first read and the lock. Repeat without the user.
    Erased,
}

/// An order with all that its transaction has locked or read.
struct Case<'a> {
    order: Order,
    reservation: Reservation,
    sale: &'a Sale,
    /// The time of a grant.
    at: Timestamp,
}

/// What became of an order.
enum Sold {
    As(OrderState),
    /// See [`Attempt::Superseded`].
    Superseded(Timestamp),
}

impl Orders {
    /// Records a webhook of the payment provider, once per id. The caller has verified who sent it.
    ///
    /// Refused without effect: an unknown order, a wrong amount or currency, the refund of a payment that is not known. A second payment
    /// that succeeds for an order must be refunded: see [`refunds_due`](Self::refunds_due).
    pub async fn record(&self, webhook: &Webhook) -> Result<Outcome, Error> {
        check::text("id", &webhook.id, MAX_ID)?;
        check::text("payment_id", &webhook.payment, MAX_ID)?;
        let mut at = self.clock.now();
        loop {
            let attempt = || self.try_record(webhook, at);
            match db::retrying(Error::is_conflict, attempt).await? {
                Attempt::Done(outcome) | Attempt::Nothing(outcome) => return Ok(outcome),
                Attempt::Superseded(newest) => at = newest.after(Duration::from_millis(1)),
                Attempt::Erased => {}
            }
        }
    }

    async fn try_record(&self, webhook: &Webhook, at: Timestamp) -> Result<Attempt, Error> {
        let unknown = || Error::UnknownOrder(webhook.order);
        let order = self.find(webhook.order).await?.ok_or_else(unknown)?;
        let sale = self.sale(&order).await?;
        let mut tx = self.entitlements.begin(&[grant(&order, &sale, at)], &[]).await?;
        let owner = (order.user, order.account);
        let recording = async {
            let order = store::lock(&mut tx, webhook.order).await?.ok_or_else(unknown)?;
            if (order.user, order.account) != owner {
                // The lock is on an entitlement that is gone.
                return Ok(Attempt::Erased);
            }
            self.record_locked(&mut tx, webhook, order, &sale, at).await
        };
        let attempt = self.db.bounded(recording).await?;
        if !matches!(attempt, Attempt::Done(_)) {
            tx.rollback().await?;
            return Ok(attempt);
        }
        fault::point("drops.order.uncommitted");
        tx.commit().await?;
        fault::point("drops.order.committed");
        Ok(attempt)
    }

    /// Records a webhook in a transaction that holds the entitlement and the order.
    async fn record_locked(
        &self,
        tx: &mut Tx,
        webhook: &Webhook,
        order: Order,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Attempt, Error> {
        check_amount(&order, webhook)?;
        if let Some((of, kind)) = store::known_webhook(tx, &webhook.id).await? {
            if of != order.id || kind != webhook.kind.word() {
                return Err(Error::WebhookReused);
            }
            return Ok(Attempt::Nothing(Outcome::Repeated(order.state)));
        }
        let is_other = order.payment.as_ref().is_some_and(|payment| *payment != webhook.payment);
        // A failed attempt may have an id of its own, and changes nothing of what succeeded.
        if is_other && webhook.kind != WebhookKind::Failed {
            return self.record_surplus(tx, webhook, &order).await;
        }
        let step = order.state.step(webhook.kind);
        let (reservation, _) = stock::store::lock(tx, order.reservation)
            .await?
            .ok_or(Error::UnknownReservation(order.reservation))?;
        let before = order.state;
        let mut case = Case { order, reservation, sale, at };
        let sold = match step {
            Step::Nothing => {
                store::add_webhook(tx, webhook, before);
                return Ok(Attempt::Done(Outcome::Unchanged(before)));
            }
            Step::Sell => self.sell(tx, &mut case).await?,
            Step::TakeBack => Sold::As(self.take_back(tx, &case).await?),
            Step::Fail => Sold::As(self.release(tx, &case, OrderState::Failed).await?),
            Step::Void => Sold::As(self.release(tx, &case, OrderState::Refunded).await?),
        };
        let state = match sold {
            Sold::As(state) => state,
            Sold::Superseded(newest) => return Ok(Attempt::Superseded(newest)),
        };
        let Case { mut order, .. } = case;
        order.state = state;
        if webhook.kind != WebhookKind::Failed {
            order.payment = Some(webhook.payment.clone());
        }
        self.save(tx, &mut order, &sale.resource).await?;
        store::add_webhook(tx, webhook, state);
        Ok(Attempt::Done(Outcome::Changed(state)))
    }

    /// Records what became of a payment other than the order's. One that succeeded must be refunded.
    async fn record_surplus(&self, tx: &mut Tx, webhook: &Webhook, order: &Order) -> Result<Attempt, Error> {
        let payment = webhook.payment.as_str();
        match (webhook.kind, store::lock_surplus(tx, order.id, payment).await?) {
            (WebhookKind::Succeeded, None) => {
                refund_due(order, "another payment has paid for the order");
                store::add_surplus(tx, order.id, payment);
                self.append_surplus(tx, order, payment, SurplusState::RefundDue)?;
            }
            (WebhookKind::Refunded, Some(SurplusState::RefundDue)) => {
                store::refund_surplus(tx, order.id, payment, None).await?;
                self.append_surplus(tx, order, payment, SurplusState::Refunded)?;
            }
            // It may have overtaken the webhook of its success: the provider sends it again.
            (WebhookKind::Refunded, None) => return Err(Error::OtherPayment(order.id)),
            (_, Some(_)) | (WebhookKind::Failed, None) => {
                store::add_webhook(tx, webhook, order.state);
                return Ok(Attempt::Done(Outcome::Unchanged(order.state)));
            }
        }
        store::add_webhook(tx, webhook, order.state);
        Ok(Attempt::Done(Outcome::Surplus(order.state)))
    }

    async fn sale(&self, order: &Order) -> Result<Sale, Error> {
        let reading = async {
            let mut connection = self.db.connection().await?;
            Ok::<_, Error>(stock::store::sale(&mut connection, order.drop).await?)
        };
        self.db.bounded(reading).await?.ok_or(Error::NoSuchDrop(order.drop))
    }

    /// Sells the units of an order: those of its reservation, or others if that has ended and there are some.
    async fn sell(&self, tx: &mut Tx, case: &mut Case<'_>) -> Result<Sold, Error> {
        if case.reservation.state != ReservationState::Held {
            return self.sell_late(tx, case).await;
        }
        let Case { order, reservation, sale, at } = case;
        match self.grant_units(tx, order, sale, *at).await? {
            Granted::Yes => {}
            Granted::Superseded(newest) => return Ok(Sold::Superseded(newest)),
            Granted::Refused(cause) => {
                refund_due(order, &cause.to_string());
                return Ok(Sold::As(self.release(tx, case, OrderState::RefundDue).await?));
            }
        }
        let units = order.quantity;
        stock::store::confirm(tx, reservation.id, units).await?;
        leave_with_all(tx, order, sale).await?;
        fault::point("drops.order.granted");
        let movement = Movement::Sell { units, rest: reservation.quantity - units };
        self.stock.move_in(tx, order.drop, movement, Some(reservation.id)).await?;
        Ok(Sold::As(OrderState::Paid))
    }

    /// Sells units although the reservation has ended. The stock decides, so its row is locked before anything is changed.
    async fn sell_late(&self, tx: &mut Tx, case: &mut Case<'_>) -> Result<Sold, Error> {
        let Case { order, reservation, sale, at } = case;
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
        match self.grant_units(tx, order, sale, *at).await? {
            Granted::Yes => {}
            Granted::Superseded(newest) => return Ok(Sold::Superseded(newest)),
            Granted::Refused(cause) => {
                refund_due(order, &cause.to_string());
                return Ok(Sold::As(OrderState::RefundDue));
            }
        }
        stock::store::confirm(tx, reservation.id, units).await?;
        leave_with_all(tx, order, sale).await?;
        self.stock.save(tx, order.drop, stock);
        Ok(Sold::As(OrderState::Paid))
    }

    /// Takes back what a paid order gave: the entitlement is revoked and the units are available again.
    async fn take_back(&self, tx: &mut Tx, case: &Case<'_>) -> Result<OrderState, Error> {
        let Case { order, reservation, sale, at } = case;
        if !self.revoke_units(tx, order, sale, *at).await? {
            tracing::warn!(order = %order.id, "a refunded order has nothing to revoke");
        }
        stock::store::take_back(tx, reservation.id).await?;
        self.stock.move_in(tx, order.drop, Movement::Refund(order.quantity), Some(reservation.id)).await?;
        Ok(OrderState::Refunded)
    }

    /// Releases the reservation of an order if it is still held.
    async fn release(&self, tx: &mut Tx, case: &Case<'_>, state: OrderState) -> Result<OrderState, Error> {
        if case.reservation.state == ReservationState::Held {
            self.stock.release_in(tx, &case.reservation).await?;
        }
        Ok(state)
    }
}

/// Lets a player leave who has bought all they may.
async fn leave_with_all(tx: &mut Tx, order: &Order, sale: &Sale) -> Result<(), Error> {
    if stock::store::owned_by_user(tx, order.user, order.drop).await? >= sale.limit {
        stock::store::leave(tx, order.drop, order.user).await?;
    }
    Ok(())
}

/// Refuses a webhook with another amount or currency than the order's.
fn check_amount(order: &Order, webhook: &Webhook) -> Result<(), Error> {
    if (webhook.amount, webhook.currency.as_str()) == (order.amount, order.currency.as_str()) {
        return Ok(());
    }
    let sum = |amount: i64, currency: &str| format!("{amount} {currency}");
    Err(Error::WrongAmount {
        order: order.id,
        expected: sum(order.amount, &order.currency),
        found: sum(webhook.amount, &webhook.currency),
    })
}

fn refund_due(order: &Order, cause: &str) {
    tracing::warn!(order = %order.id, drop = %order.drop, cause, "a payment must be refunded");
}

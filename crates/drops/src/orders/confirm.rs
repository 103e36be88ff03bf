//! What the payment provider's messages do to orders.

use std::time::Duration;

use base::Timestamp;
use db::Tx;
use entitlement::{Action, Change, Holding};
use runtime::fault;

use super::model::{Notice, NoticeKind, Order, OrderState, Outcome, Step};
use super::{Orders, store};
use crate::error::Error;
use crate::stock::{self, Movement, Reservation, ReservationState, Sale};

/// As long as the columns that hold them.
const MAX_ID: usize = 255;
/// The name under which entitlements know us.
const CALLER: &str = "drops";

/// How an attempt ended.
enum Attempt {
    Done(Outcome),
    /// The account's entitlement was changed by a shop whose clock is ahead. Repeat with a later time than this.
    Superseded(Timestamp),
}

/// Whether an entitlement was changed.
enum Granted {
    Yes,
    /// It will never be: the account is gone, or owns the resource in a way that does not count.
    Refused(entitlement::Error),
    Superseded(Timestamp),
}

/// An order with all that its transaction has locked or read.
struct Case<'a> {
    order: Order,
    reservation: Reservation,
    sale: &'a Sale,
    /// The time of changes to the entitlement.
    at: Timestamp,
}

impl Orders {
    /// Records a message of the payment provider, once per id. The caller has verified who sent it.
    ///
    /// Refused without effect: an unknown order, a wrong amount or currency, another payment than the order's.
    pub async fn record(&self, notice: &Notice) -> Result<Outcome, Error> {
        for (field, text) in [("id", &notice.id), ("payment_id", &notice.payment)] {
            if !(1..=MAX_ID).contains(&text.chars().count()) {
                return Err(Error::Invalid { field, what: format!("has 1 to {MAX_ID} characters") });
            }
        }
        let mut at = self.clock.now();
        loop {
            let attempt = || self.try_record(notice, at);
            match db::retrying(Error::is_conflict, attempt).await? {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::Superseded(newest) => at = newest.after(Duration::from_millis(1)),
            }
        }
    }

    async fn try_record(&self, notice: &Notice, at: Timestamp) -> Result<Attempt, Error> {
        let unknown = || Error::UnknownOrder(notice.order);
        let order = self.find(notice.order).await?.ok_or_else(unknown)?;
        let sale = self.sale(&order).await?;
        // Who owns what does not change in an order, except that an erased user is gone: then there is no account to grant to.
        let locked = [grant(&order, &sale, at)];
        let mut tx = self.entitlements.begin(&locked, &[]).await?;
        let recording = async {
            let order = store::lock(&mut tx, notice.order).await?.ok_or_else(unknown)?;
            check(&order, notice)?;
            if let Some((of, kind)) = store::message(&mut tx, &notice.id).await? {
                if of != order.id || kind != notice.kind.word() {
                    return Err(Error::WebhookReused);
                }
                return Ok((Attempt::Done(Outcome::Repeated(order.state)), false));
            }
            let step = order.state.step(notice.kind);
            let (reservation, _) = stock::store::lock(&mut tx, order.reservation)
                .await?
                .ok_or(Error::UnknownReservation(order.reservation))?;
            let before = order.state;
            let mut case = Case { order, reservation, sale: &sale, at };
            let state = match step {
                Step::Nothing => {
                    store::add_message(&mut tx, notice, before);
                    return Ok((Attempt::Done(Outcome::Unchanged(before)), true));
                }
                Step::Sell => match self.sell(&mut tx, &mut case).await? {
                    Ok(state) => state,
                    Err(newest) => return Ok((Attempt::Superseded(newest), false)),
                },
                Step::TakeBack => match self.take_back(&mut tx, &case).await? {
                    Ok(state) => state,
                    Err(newest) => return Ok((Attempt::Superseded(newest), false)),
                },
                Step::Fail => self.release(&mut tx, &case, OrderState::Failed).await?,
                Step::Void => self.release(&mut tx, &case, OrderState::Refunded).await?,
            };
            let Case { mut order, .. } = case;
            order.state = state;
            order.version += 1;
            if notice.kind != NoticeKind::Failed {
                order.payment = Some(notice.payment.clone());
            }
            store::update(&mut tx, &order).await?;
            store::add_message(&mut tx, notice, state);
            self.append(&mut tx, &order)?;
            Ok((Attempt::Done(Outcome::Changed(state)), true))
        };
        let (attempt, is_written) = self.db.bounded(recording).await?;
        if !is_written {
            tx.rollback().await?;
            return Ok(attempt);
        }
        fault::point("drops.order.uncommitted");
        tx.commit().await?;
        fault::point("drops.order.committed");
        Ok(attempt)
    }

    async fn sale(&self, order: &Order) -> Result<Sale, Error> {
        let reading = async {
            let mut connection = self.db.connection().await?;
            Ok::<_, Error>(stock::store::sale(&mut connection, order.drop).await?)
        };
        self.db.bounded(reading).await?.ok_or(Error::NoSuchDrop(order.drop))
    }

    /// Sells the units of an order: those of its reservation, or others if that has ended and there are some.
    async fn sell(&self, tx: &mut Tx, case: &mut Case<'_>) -> Result<Result<OrderState, Timestamp>, Error> {
        let Case { order, reservation, sale, at } = case;
        let units = order.quantity;
        if reservation.state == ReservationState::Held {
            match self.apply(tx, grant(order, sale, *at), &format!("{}-paid", order.id)).await? {
                Granted::Yes => {}
                Granted::Superseded(newest) => return Ok(Err(newest)),
                Granted::Refused(cause) => {
                    refund_due(order, &cause.to_string());
                    return self.release(tx, case, OrderState::RefundDue).await.map(Ok);
                }
            }
            stock::store::confirm(tx, reservation.id, units).await?;
            leave_with_all(tx, order, sale).await?;
            fault::point("drops.order.granted");
            let movement = Movement::Sell { units, rest: reservation.quantity - units };
            self.stock.move_in(tx, order.drop, movement, Some(reservation.id)).await?;
            return Ok(Ok(OrderState::Paid));
        }
        // Too late: the stock decides, so its row is locked before the entitlement is changed.
        let mut stock = stock::lock(tx, order.drop).await?;
        let taken = stock::store::units_of_user(tx, order.user, order.drop).await?;
        if taken + units > sale.limit {
            refund_due(order, "the player has or holds as many units as they may");
            return Ok(Ok(OrderState::RefundDue));
        }
        if !stock.move_units(Movement::SellLate(units), Some(reservation.id)) {
            refund_due(order, "the reservation had ended and there are not enough units");
            return Ok(Ok(OrderState::RefundDue));
        }
        match self.apply(tx, grant(order, sale, *at), &format!("{}-paid", order.id)).await? {
            Granted::Yes => {}
            Granted::Superseded(newest) => return Ok(Err(newest)),
            Granted::Refused(cause) => {
                refund_due(order, &cause.to_string());
                return Ok(Ok(OrderState::RefundDue));
            }
        }
        stock::store::confirm(tx, reservation.id, units).await?;
        leave_with_all(tx, order, sale).await?;
        self.stock.save(tx, order.drop, stock);
        Ok(Ok(OrderState::Paid))
    }

    /// Takes back what a paid order gave: the entitlement is revoked and the units are available again.
    async fn take_back(&self, tx: &mut Tx, case: &Case<'_>) -> Result<Result<OrderState, Timestamp>, Error> {
        let Case { order, reservation, sale, at } = case;
        let change =
            Change { action: Action::Revoke { quantity: Some(order.quantity) }, ..grant(order, sale, *at) };
        match self.apply(tx, change, &format!("{}-refunded", order.id)).await? {
            Granted::Yes => {}
            Granted::Superseded(newest) => return Ok(Err(newest)),
            // The user was erased, or the resource was revoked and granted anew in another way: there is nothing of ours to revoke.
            Granted::Refused(cause) => {
                tracing::warn!(order = %order.id, %cause, "a refunded order has nothing to revoke");
            }
        }
        stock::store::take_back(tx, reservation.id).await?;
        self.stock.move_in(tx, order.drop, Movement::Refund(order.quantity), Some(reservation.id)).await?;
        Ok(Ok(OrderState::Refunded))
    }

    /// Releases the reservation of an order if it is still held.
    async fn release(&self, tx: &mut Tx, case: &Case<'_>, state: OrderState) -> Result<OrderState, Error> {
        if case.reservation.state == ReservationState::Held {
            self.stock.release_in(tx, &case.reservation).await?;
        }
        Ok(state)
    }

    async fn apply(&self, tx: &mut Tx, change: Change, key: &str) -> Result<Granted, Error> {
        match self.entitlements.apply_in(tx, CALLER, key, &[change]).await {
            Ok(answer) => {
                let results = answer.results()?;
                let newest = results.iter().find(|result| result["effect"] == "superseded");
                let as_of = newest.and_then(|result| result["entitlement"]["as_of"].as_str()?.parse().ok());
                Ok(as_of.map_or(Granted::Yes, Granted::Superseded))
            }
            Err(
                refused @ (entitlement::Error::NoAccount(_)
                | entitlement::Error::Counted
                | entitlement::Error::NotCounted
                | entitlement::Error::Invalid { .. }),
            ) => Ok(Granted::Refused(refused)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Lets a player leave who has bought all they may.
async fn leave_with_all(tx: &mut Tx, order: &Order, sale: &Sale) -> Result<(), Error> {
    if stock::store::owned_by_user(tx, order.user, order.drop).await? >= sale.limit {
        stock::store::leave(tx, order.drop, order.user).await?;
    }
    Ok(())
}

/// What a paid order gives. Units are counted, so that a refund takes back what its order gave and nothing else.
fn grant(order: &Order, sale: &Sale, at: Timestamp) -> Change {
    Change {
        holding: Holding { user: order.user, account: order.account, resource: sale.resource.clone() },
        action: Action::Grant { quantity: Some(order.quantity), valid_until: None },
        occurred_at: at,
        reference: Some(order.id.to_string()),
    }
}

/// Refuses a message that cannot be about this order.
fn check(order: &Order, notice: &Notice) -> Result<(), Error> {
    if (notice.amount, notice.currency.as_str()) != (order.amount, order.currency.as_str()) {
        let sum = |amount: i64, currency: &str| format!("{amount} {currency}");
        return Err(Error::WrongAmount {
            order: order.id,
            expected: sum(order.amount, &order.currency),
            found: sum(notice.amount, &notice.currency),
        });
    }
    // A failed attempt may have an id of its own; what succeeded and what is refunded is one payment.
    let is_other = order.payment.as_ref().is_some_and(|payment| *payment != notice.payment);
    if is_other && notice.kind != NoticeKind::Failed {
        return Err(Error::OtherPayment(order.id));
    }
    Ok(())
}

fn refund_due(order: &Order, cause: &str) {
    tracing::warn!(order = %order.id, drop = %order.drop, cause, "a payment must be refunded");
}

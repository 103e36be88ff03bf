//! Refunds that operators have made by hand.

use runtime::fault;

use super::model::{ListOrders, OrderState, Outcome, RefundDue, SurplusState};
use super::{MAX_ACTOR, Orders, Recorder, limited, store};
use crate::OrderId;
use crate::check;
use crate::error::Error;
use crate::stock;

impl Orders {
    /// Lists the payments that operators have to refund, the oldest first. A refund at the provider ends them: its webhook says so. So
    /// does [`settle_refund`](Self::settle_refund).
    pub async fn refunds_due(&self, limit: u32) -> Result<Vec<RefundDue>, Error> {
        let limit = limited(limit);
        let reading = async {
            let mut connection = self.recorder.db.connection().await?;
            let which = ListOrders { state: OrderState::RefundDue, drop: None, after: None, limit };
            let orders = store::in_state(&mut connection, which).await?;
            let own = orders.into_iter().map(|(order, since)| RefundDue {
                payment: order.payment.clone().unwrap_or_default(),
                order,
                is_surplus: false,
                since,
            });
            let mut due: Vec<RefundDue> = own.collect();
            due.extend(store::surplus_due(&mut connection, limit).await?);
            Ok::<_, Error>(due)
        };
        let mut due = self.recorder.db.bounded(reading).await?;
        due.sort_by_key(|due| due.since);
        due.truncate(limit as usize);
        Ok(due)
    }

    /// Marks a payment that had to be refunded as refunded, with the name of the operator who did it. Changes nothing if it is refunded
    /// already. Fails with [`Error::NoRefundDue`] if it need not be.
    pub async fn settle_refund(&self, id: OrderId, payment: &str, actor: &str) -> Result<Outcome, Error> {
        check::text("actor", actor, MAX_ACTOR)?;
        let settling = || self.recorder.db.bounded(self.recorder.try_settle(id, payment, actor));
        db::retrying(Error::is_conflict, settling).await
    }
}

impl Recorder {
    async fn try_settle(&self, id: OrderId, payment: &str, actor: &str) -> Result<Outcome, Error> {
        let mut tx = self.db.begin().await?;
        let mut order = store::lock(&mut tx, id).await?.ok_or(Error::UnknownOrder(id))?;
        let outcome = if order.payment.as_deref() == Some(payment) {
            match order.state {
                OrderState::RefundDue => {}
                OrderState::Refunded => return Ok(Outcome::Unchanged(order.state)),
                _ => return Err(Error::NoRefundDue(id)),
            }
            // Nothing was sold, so there is nothing to take back.
            order.state = OrderState::Refunded;
            order.settled_by = Some(actor.to_owned());
            let sale = stock::store::sale_in(&mut tx, order.drop).await?;
            let sale = sale.ok_or(Error::NoSuchDrop(order.drop))?;
            self.save(&mut tx, &mut order, &sale.resource)?;
            Outcome::Changed(order.state)
        } else {
            match store::lock_surplus(&mut tx, id, payment).await? {
                Some(SurplusState::RefundDue) => {}
                Some(SurplusState::Refunded) => return Ok(Outcome::Unchanged(order.state)),
                None => return Err(Error::NoRefundDue(id)),
            }
            store::refund_surplus(&mut tx, id, payment, Some(actor)).await?;
            self.append_surplus(&mut tx, &order, payment, SurplusState::Refunded)?;
            Outcome::Surplus(order.state)
        };
        fault::point("drops.settle.uncommitted");
        tx.commit().await?;
        fault::point("drops.settle.committed");
        Ok(outcome)
    }
}

//! Refunds that operators make at the provider and settle here.

use runtime::fault;

use super::model::{OrderState, PaymentOutcome, SurplusState};
use super::{MAX_ACTOR, OrderTransactions, Orders, store};
use crate::OrderId;
use crate::check;
use crate::error::Error;
use crate::stock;

impl Orders {
    /// Marks a due refund as done, with the name of the operator. Changes nothing if the payment is already refunded. Fails with
    /// [`Error::NoRefundDue`] if it need not be refunded.
    pub async fn settle_refund(
        &self,
        id: OrderId,
        payment: &str,
        actor: &str,
    ) -> Result<PaymentOutcome, Error> {
        check::text("actor", actor, MAX_ACTOR)?;
        let settling = || self.transactions.db.bounded(self.transactions.try_settle(id, payment, actor));
        db::retry_conflicts(Error::is_conflict, settling).await
    }
}

impl OrderTransactions {
    async fn try_settle(&self, id: OrderId, payment: &str, actor: &str) -> Result<PaymentOutcome, Error> {
        let mut tx = self.db.begin().await?;
        let mut order = store::lock(&mut tx, id).await?.ok_or(Error::UnknownOrder(id))?;
        let outcome = if order.payment.as_deref() == Some(payment) {
            match order.state {
                OrderState::RefundDue => {}
                OrderState::Refunded => return Ok(PaymentOutcome::Unchanged(order.state)),
                _ => return Err(Error::NoRefundDue(id)),
            }
            // Nothing was sold, so there is nothing to revoke.
            order.state = OrderState::Refunded;
            order.settled_by = Some(actor.to_owned());
            let sale = stock::store::sale_in(&mut tx, order.drop).await?;
            let sale = sale.ok_or(Error::NoSuchDrop(order.drop))?;
            self.save(&mut tx, &mut order, &sale.resource)?;
            PaymentOutcome::Changed(order.state)
        } else {
            match store::lock_surplus(&mut tx, id, payment).await? {
                Some(SurplusState::RefundDue) => {}
                Some(SurplusState::Refunded) => return Ok(PaymentOutcome::Unchanged(order.state)),
                None => return Err(Error::NoRefundDue(id)),
            }
            store::refund_surplus(&mut tx, id, payment, Some(actor)).await?;
            self.append_surplus(&mut tx, &order, payment, SurplusState::Refunded)?;
            PaymentOutcome::Surplus(order.state)
        };
        fault::point("drops.settle.uncommitted");
        tx.commit().await?;
        fault::point("drops.settle.committed");
        Ok(outcome)
    }
}

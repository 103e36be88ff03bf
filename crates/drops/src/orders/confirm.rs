//! Records one webhook of the payment provider in its own transaction.

use std::time::Duration;

use base::Timestamp;
use db::Tx;
use runtime::fault;

use super::grant::grant;
use super::model::{Order, OrderState, PaymentOutcome, Step, SurplusState, Webhook, WebhookKind};
use super::sell::{LockedOrder, SaleResult, log_refund_due};
use super::{OrderTransactions, store, trace};
use crate::DropId;
use crate::error::Error;
use crate::stock::{self, Sale};

/// The result of an attempt to record a webhook.
enum Attempt {
    /// Changes were made: commit them.
    Done(PaymentOutcome),
    /// Nothing has to be written.
    NoChange(PaymentOutcome),
    /// Another shop, whose clock is ahead, changed the account's entitlement at this time. Retry with a later time.
    Superseded(Timestamp),
    /// The user was erased between the first read and the lock. Retry without the user.
    Erased,
}

impl OrderTransactions {
    /// Records a webhook in its own transaction.
    pub(super) async fn record_alone(&self, webhook: &Webhook) -> Result<PaymentOutcome, Error> {
        let mut at = self.clock.now();
        loop {
            let attempt = || self.try_record(webhook, at);
            match db::retry_conflicts(Error::is_conflict, attempt).await? {
                Attempt::Done(outcome) | Attempt::NoChange(outcome) => return Ok(outcome),
                Attempt::Superseded(newest) => at = newest.after(Duration::from_millis(1)),
                Attempt::Erased => {}
            }
        }
    }

    async fn try_record(&self, webhook: &Webhook, at: Timestamp) -> Result<Attempt, Error> {
        let unknown = || Error::UnknownOrder(webhook.order);
        let order = self.find(webhook.order).await?.ok_or_else(unknown)?;
        let sale = self.sale(order.drop).await?;
        let mut tx = self.entitlements.begin(&[grant(&order, &sale, at)], &[]).await?;
        let owner = (order.user, order.account);
        let recording = async {
            let order = store::lock(&mut tx, webhook.order).await?.ok_or_else(unknown)?;
            if (order.user, order.account) != owner {
                // The transaction has locked the entitlement of a user who no longer exists.
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

    /// Records a webhook in a transaction that has locked the entitlement and the order.
    async fn record_locked(
        &self,
        tx: &mut Tx,
        webhook: &Webhook,
        order: Order,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Attempt, Error> {
        check_amount(&order, webhook)?;
        if let Some((of, kind)) = store::find_webhook(tx, &webhook.id).await? {
            if of != order.id || kind != webhook.kind.as_str() {
                return Err(Error::WebhookReused);
            }
            return Ok(Attempt::NoChange(PaymentOutcome::Repeated(order.state)));
        }
        // A failed attempt may have its own payment id. It does not affect the payment that succeeded.
        if webhook.is_other_payment(&order) && webhook.kind != WebhookKind::Failed {
            return self.record_surplus(tx, webhook, &order).await;
        }
        let step = order.state.step(webhook.kind);
        let (reservation, _) = stock::store::lock(tx, order.reservation)
            .await?
            .ok_or(Error::UnknownReservation(order.reservation))?;
        let before = order.state;
        let mut locked = LockedOrder { order, reservation, trace: trace() };
        let result = match step {
            Step::Nothing => {
                store::add_webhooks(tx, [(webhook, before)]);
                return Ok(Attempt::Done(PaymentOutcome::Unchanged(before)));
            }
            Step::Sell => self.sell(tx, &mut locked, sale, at).await?,
            Step::TakeBack => SaleResult::NewState(self.take_back(tx, &locked, sale, at).await?),
            Step::Fail => SaleResult::NewState(self.release(tx, &locked, OrderState::Failed).await?),
            Step::Void => SaleResult::NewState(self.release(tx, &locked, OrderState::Refunded).await?),
        };
        let state = match result {
            SaleResult::NewState(state) => state,
            SaleResult::Superseded(newest) => return Ok(Attempt::Superseded(newest)),
        };
        let LockedOrder { mut order, .. } = locked;
        order.state = state;
        if webhook.kind != WebhookKind::Failed {
            order.payment = Some(webhook.payment.clone());
        }
        self.save(tx, &mut order, &sale.resource)?;
        store::add_webhooks(tx, [(webhook, state)]);
        Ok(Attempt::Done(PaymentOutcome::Changed(state)))
    }

    /// Records a webhook about a payment other than the order's. A surplus payment that succeeded must be refunded.
    async fn record_surplus(&self, tx: &mut Tx, webhook: &Webhook, order: &Order) -> Result<Attempt, Error> {
        let payment = webhook.payment.as_str();
        match (webhook.kind, store::lock_surplus(tx, order.id, payment).await?) {
            (WebhookKind::Succeeded, None) => {
                log_refund_due(order, "another payment has paid for the order");
                store::add_surplus(tx, order.id, payment);
                self.append_surplus(tx, order, payment, SurplusState::RefundDue)?;
            }
            (WebhookKind::Refunded, Some(SurplusState::RefundDue)) => {
                store::refund_surplus(tx, order.id, payment, None).await?;
                self.append_surplus(tx, order, payment, SurplusState::Refunded)?;
            }
            // The refund may have overtaken the success webhook: the provider will send it again.
            (WebhookKind::Refunded, None) => return Err(Error::OtherPayment(order.id)),
            (_, Some(_)) | (WebhookKind::Failed, None) => {
                store::add_webhooks(tx, [(webhook, order.state)]);
                return Ok(Attempt::Done(PaymentOutcome::Unchanged(order.state)));
            }
        }
        store::add_webhooks(tx, [(webhook, order.state)]);
        Ok(Attempt::Done(PaymentOutcome::Surplus(order.state)))
    }

    /// Reads what a drop sells.
    pub(super) async fn sale(&self, drop: DropId) -> Result<Sale, Error> {
        let reading = async {
            let mut connection = self.db.connection().await?;
            Ok::<_, Error>(stock::store::sale(&mut connection, drop).await?)
        };
        self.db.bounded(reading).await?.ok_or(Error::NoSuchDrop(drop))
    }
}

/// Fails if the webhook's amount or currency differs from the order's.
fn check_amount(order: &Order, webhook: &Webhook) -> Result<(), Error> {
    if webhook.has_amount_of(order) {
        return Ok(());
    }
    let sum = |amount: i64, currency: &str| format!("{amount} {currency}");
    Err(Error::WrongAmount {
        order: order.id,
        expected: sum(order.amount, &order.currency),
        found: sum(webhook.amount, &webhook.currency),
    })
}

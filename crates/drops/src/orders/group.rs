//! Batches concurrent requests into shared transactions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use db::Tx;
use entitlement::Change;
use runtime::batch::Batcher;
use runtime::fault;

use super::grant::grant;
use super::model::{Order, OrderState, PaymentOutcome, Webhook};
use super::pay::NewOrder;
use super::sell::{GrantResult, LockedOrder};
use super::{OrderTransactions, store, trace};
use crate::error::Error;
use crate::stock::store::HeldFilter;
use crate::stock::{self, Sale};
use crate::{DropId, OrderId, ReservationId};

/// How many batchers share the drops, so that a hot drop does not delay the others.
const BATCHERS: usize = 16;
/// How many requests share a transaction at most. The query that reads their entitlements has one part per request.
const MAX_GROUP: usize = 128;
/// How long a group waits for the locks of its entitlements. Short compared with the timeout of a payment provider, since payments whose
/// locks are free wait, too. Long enough for a busy server, where groups are cheaper than single payments.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// How many groups of new orders may run concurrently. They share no rows.
const PAY_LANES: usize = 4;

/// A group's result for one of its requests. None: the request needs its own transaction.
type GroupResult<T> = Option<Result<T, Error>>;

/// Collects concurrent requests into groups. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct RequestBatchers {
    confirmations: Arc<[Batcher<PendingPayment, GroupResult<PaymentOutcome>>]>,
    /// How many payments wait for a group.
    waiting: Arc<AtomicUsize>,
    new_orders: Batcher<NewOrder, GroupResult<Order>>,
}

/// A webhook that sells the units of an order, with the order as it was read without a lock.
#[derive(Clone, Debug)]
pub(super) struct PendingPayment {
    webhook: Webhook,
    order: Order,
    /// The trace of the request.
    trace: Option<String>,
}

impl PendingPayment {
    pub(super) fn new(webhook: Webhook, order: Order) -> Self {
        Self { webhook, order, trace: trace() }
    }
}

impl RequestBatchers {
    pub(super) fn new(transactions: &OrderTransactions) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let confirmations = |_| {
            let (transactions, waiting) = (transactions.clone(), waiting.clone());
            // One lane: concurrent groups of one drop would wait for each other's stock lock.
            Batcher::new(1, MAX_GROUP, move |payments: Vec<PendingPayment>| {
                waiting.fetch_sub(payments.len(), Ordering::Relaxed);
                let transactions = transactions.clone();
                async move { transactions.confirm_all(payments).await }
            })
        };
        let confirmations = (0..BATCHERS).map(confirmations).collect();
        let transactions = transactions.clone();
        let new_orders = Batcher::new(PAY_LANES, MAX_GROUP, move |requests: Vec<NewOrder>| {
            let transactions = transactions.clone();
            async move {
                let paying = transactions.db.bounded(transactions.pay_group(&requests)).await;
                share_result(requests.len(), paying)
            }
        });
        Self { confirmations, waiting, new_orders }
    }

    /// Sells the units of an order, batched with other payments.
    pub(super) async fn confirm(&self, payment: PendingPayment) -> GroupResult<PaymentOutcome> {
        let batcher = payment.order.drop.as_uuid().as_u128() % BATCHERS as u128;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.confirmations[batcher as usize].run(payment).await.flatten()
    }

    /// Returns how many payments wait for a group.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Creates an order, batched with others.
    pub(super) async fn pay(&self, request: NewOrder) -> GroupResult<Order> {
        self.new_orders.run(request).await.flatten()
    }
}

/// Converts the result of a group into one result per request.
fn share_result<T>(size: usize, done: Result<Vec<Option<T>>, Error>) -> Vec<GroupResult<T>> {
    match done {
        Ok(answers) => answers.into_iter().map(|answer| answer.map(Ok)).collect(),
        // Single transactions would only wait for the store once more.
        Err(error) if error.is_unavailable() => {
            let error = Arc::new(error);
            (0..size).map(|_| Some(Err(Error::Batch(error.clone())))).collect()
        }
        // Nothing was done, or the rows show what was. Which request caused the failure is unknown, so each gets its own transaction.
        Err(error) => {
            tracing::debug!(%error, size, "a group failed; each of its requests gets its own transaction");
            (0..size).map(|_| None).collect()
        }
    }
}

impl OrderTransactions {
    /// Confirms payments in order. Payments of one drop share a transaction.
    async fn confirm_all(&self, payments: Vec<PendingPayment>) -> Vec<GroupResult<PaymentOutcome>> {
        let mut by_drop: BTreeMap<DropId, Vec<usize>> = BTreeMap::new();
        for (at, payment) in payments.iter().enumerate() {
            by_drop.entry(payment.order.drop).or_default().push(at);
        }
        let mut answers: Vec<GroupResult<PaymentOutcome>> = payments.iter().map(|_| None).collect();
        for (drop, indices) in by_drop {
            let group: Vec<&PendingPayment> = indices.iter().map(|at| &payments[*at]).collect();
            let confirmed = share_result(group.len(), self.confirm_group(drop, &group).await);
            indices.into_iter().zip(confirmed).for_each(|(at, answer)| answers[at] = answer);
        }
        answers
    }

    /// Confirms payments of one drop in one transaction. Returns none for a payment that needs its own.
    ///
    /// It takes at most twelve round trips, however many payments there are: the drop, begin, the entitlement locks, orders, webhooks,
    /// reservations, entitlements (three), the players' units, the stock, commit.
    async fn confirm_group(
        &self,
        drop: DropId,
        payments: &[&PendingPayment],
    ) -> Result<Vec<Option<PaymentOutcome>>, Error> {
        let (sale, at) = (self.sale(drop).await?, self.clock.now());
        let grants: Vec<Change> = payments.iter().map(|payment| grant(&payment.order, &sale, at)).collect();
        let mut tx = self.entitlements.begin_shared(&grants, LOCK_WAIT).await?;
        let confirming = async {
            let locked_orders = plain_sales(&mut tx, payments).await?;
            self.sell_locked(&mut tx, payments, locked_orders, &sale, at).await
        };
        let outcomes = self.db.bounded(confirming).await?;
        if outcomes.iter().all(Option::is_none) {
            tx.rollback().await?;
            return Ok(outcomes);
        }
        fault::point("drops.order.uncommitted");
        tx.commit().await?;
        fault::point("drops.order.committed");
        Ok(outcomes)
    }

    /// Sells the units of locked orders, each with the index of its payment.
    async fn sell_locked(
        &self,
        tx: &mut Tx,
        payments: &[&PendingPayment],
        locked_orders: Vec<(usize, LockedOrder)>,
        sale: &Sale,
        at: base::Timestamp,
    ) -> Result<Vec<Option<PaymentOutcome>>, Error> {
        let mut outcomes: Vec<Option<PaymentOutcome>> = payments.iter().map(|_| None).collect();
        let (indices, mut locked_orders): (Vec<usize>, Vec<LockedOrder>) = locked_orders.into_iter().unzip();
        let granted = self.sell_held(tx, &mut locked_orders, sale, at).await?;
        let sold = indices.into_iter().zip(locked_orders).zip(granted);
        // An order whose units were not granted is unchanged. Its own transaction retries with a later time or finds a refund due.
        let sold = sold.filter(|(_, granted)| matches!(granted, GrantResult::Granted));
        let mut orders = Vec::new();
        for ((index, LockedOrder { mut order, .. }), _) in sold {
            order.state = OrderState::Paid;
            order.payment = Some(payments[index].webhook.payment.clone());
            order.version += 1;
            outcomes[index] = Some(PaymentOutcome::Changed(order.state));
            orders.push((order, payments[index]));
        }
        store::save(tx, orders.iter().map(|(order, _)| order));
        store::add_webhooks(tx, orders.iter().map(|(order, payment)| (&payment.webhook, order.state)));
        let events = orders.iter().map(|(order, payment)| (order, payment.trace.as_deref()));
        self.append(tx, events, &sale.resource)?;
        Ok(outcomes)
    }
}

/// Locks the orders and reservations of payments, skipping rows that another transaction has locked. Returns the plain sales of held units,
/// each with the index of its payment.
async fn plain_sales(tx: &mut Tx, payments: &[&PendingPayment]) -> Result<Vec<(usize, LockedOrder)>, Error> {
    let ids: Vec<OrderId> = payments.iter().map(|payment| payment.order.id).collect();
    let orders = store::lock_available(tx, &ids).await?;
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<&str> = payments.iter().map(|payment| payment.webhook.id.as_str()).collect();
    let mut received = store::received_webhooks(tx, &ids).await?;
    let ids: Vec<ReservationId> = orders.iter().map(|order| order.reservation).collect();
    let held = stock::store::lock_held(tx, &ids, HeldFilter::AnyTime).await?;
    let mut orders: HashMap<OrderId, Order> = orders.into_iter().map(|order| (order.id, order)).collect();
    let mut held: HashMap<ReservationId, _> = held.into_iter().map(|held| (held.id, held)).collect();
    let mut locked = |payment: &PendingPayment| {
        let PendingPayment { webhook, order: before, trace } = payment;
        // Removed, so that only the first of two payments of one order is sold here. The second one is decided afterwards.
        let order = orders.remove(&webhook.order)?;
        // The entitlement locks belong to the owner that was read first. They do not fit if the user was erased since.
        let is_same_owner = (order.user, order.account) == (before.user, before.account);
        let is_plain = is_same_owner && webhook.sells(&order) && received.insert(webhook.id.clone());
        let reservation = held.remove(&order.reservation).filter(|_| is_plain)?;
        Some(LockedOrder { order, reservation, trace: trace.clone() })
    };
    Ok(payments.iter().enumerate().filter_map(|(at, payment)| Some((at, locked(payment)?))).collect())
}

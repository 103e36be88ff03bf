//! Requests that arrive together, and share a transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use db::Tx;
use entitlement::Change;
use runtime::batch::Batcher;
use runtime::fault;

use super::grant::grant;
use super::model::{Order, OrderState, Outcome, Webhook};
use super::pay::NewOrder;
use super::sell::{Case, Granted};
use super::{Recorder, store, trace};
use crate::error::Error;
use crate::stock::store::Payable;
use crate::stock::{self, Sale};
use crate::{DropId, OrderId, ReservationId};

/// Each drop has one of so many batchers, so that a hot drop does not hold up the others.
const BATCHERS: usize = 16;
/// How many requests share a transaction at most. It is a query of as many parts that reads what is known of the entitlements.
const TOGETHER: usize = 128;
/// How long a group waits for the locks of its entitlements. Short beside the patience of a payment provider, since those whose locks are
/// free wait with the rest; and long enough for a busy server, which is to get groups and not single payments.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// How many groups of new orders may be under way. They have no row in common.
const PAY_LANES: usize = 4;

/// A group's answer to one of its requests. None: the request needs a transaction of its own.
type Shared<T> = Option<Result<T, Error>>;

/// What gathers the requests that arrive together. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    confirming: Arc<[Batcher<Payment, Shared<Outcome>>]>,
    /// How many payments no group has taken yet.
    waiting: Arc<AtomicUsize>,
    paying: Batcher<NewOrder, Shared<Order>>,
}

/// A webhook that sells the units of an order, by the order as it was read without a lock.
#[derive(Clone, Debug)]
pub(super) struct Payment {
    webhook: Webhook,
    order: Order,
    /// The trace that it belongs to.
    trace: Option<String>,
}

impl Payment {
    pub(super) fn new(webhook: Webhook, order: Order) -> Self {
        Self { webhook, order, trace: trace() }
    }
}

impl Groups {
    pub(super) fn new(recorder: &Recorder) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let confirming = |_| {
            let (recorder, waiting) = (recorder.clone(), waiting.clone());
            // One lane: groups of one drop would wait for each other at its stock.
            Batcher::new(1, TOGETHER, move |payments: Vec<Payment>| {
                waiting.fetch_sub(payments.len(), Ordering::Relaxed);
                let recorder = recorder.clone();
                async move { recorder.confirm_all(payments).await }
            })
        };
        let confirming = (0..BATCHERS).map(confirming).collect();
        let recorder = recorder.clone();
        let paying = Batcher::new(PAY_LANES, TOGETHER, move |requests: Vec<NewOrder>| {
            let recorder = recorder.clone();
            async move {
                let paying = recorder.db.bounded(recorder.pay_group(&requests)).await;
                shared(requests.len(), paying)
            }
        });
        Self { confirming, waiting, paying }
    }

    /// Sells the units of an order, together with those of others.
    pub(super) async fn confirm(&self, payment: Payment) -> Shared<Outcome> {
        let batcher = payment.order.drop.as_uuid().as_u128() % BATCHERS as u128;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.confirming[batcher as usize].run(payment).await.flatten()
    }

    /// Returns how many payments wait until a group takes them.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Makes an order, together with others.
    pub(super) async fn pay(&self, request: NewOrder) -> Shared<Order> {
        self.paying.run(request).await.flatten()
    }
}

/// Returns what each request of a group is answered.
fn shared<T>(size: usize, done: Result<Vec<Option<T>>, Error>) -> Vec<Shared<T>> {
    match done {
        Ok(answers) => answers.into_iter().map(|answer| answer.map(Ok)).collect(),
        // A transaction of its own would wait for the store once more.
        Err(error) if error.is_away() => {
            let error = Arc::new(error);
            (0..size).map(|_| Some(Err(Error::Batch(error.clone())))).collect()
        }
        // Nothing was done, or the rows show what was. Nobody knows which request was in the way, so each finds out alone.
        Err(error) => {
            tracing::debug!(%error, size, "a group failed; each of its requests is done alone");
            (0..size).map(|_| None).collect()
        }
    }
}

impl Recorder {
    /// Answers payments in their order. Those of one drop share a transaction.
    async fn confirm_all(&self, payments: Vec<Payment>) -> Vec<Shared<Outcome>> {
        let mut by_drop: BTreeMap<DropId, Vec<usize>> = BTreeMap::new();
        for (at, payment) in payments.iter().enumerate() {
            by_drop.entry(payment.order.drop).or_default().push(at);
        }
        let mut answers: Vec<Shared<Outcome>> = payments.iter().map(|_| None).collect();
        for (drop, places) in by_drop {
            let group: Vec<&Payment> = places.iter().map(|at| &payments[*at]).collect();
            let confirmed = shared(group.len(), self.confirm_group(drop, &group).await);
            places.into_iter().zip(confirmed).for_each(|(at, answer)| answers[at] = answer);
        }
        answers
    }

    /// Sells what payments of one drop pay for, in one transaction. None for a payment that needs one of its own.
    ///
    /// Twelve round trips at most, however many payments there are: the drop, begin, the locks of the entitlements, orders, webhooks,
    /// reservations, entitlements (three), what the players own, the stock, commit.
    async fn confirm_group(
        &self,
        drop: DropId,
        payments: &[&Payment],
    ) -> Result<Vec<Option<Outcome>>, Error> {
        let (sale, at) = (self.sale(drop).await?, self.clock.now());
        let grants: Vec<Change> = payments.iter().map(|payment| grant(&payment.order, &sale, at)).collect();
        let mut tx = self.entitlements.begin_shared(&grants, LOCK_WAIT).await?;
        let confirming = async {
            let cases = plain_sales(&mut tx, payments).await?;
            self.sell_cases(&mut tx, payments, cases, &sale, at).await
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

    /// Sells the units of these cases, each with the place of its payment.
    async fn sell_cases(
        &self,
        tx: &mut Tx,
        payments: &[&Payment],
        cases: Vec<(usize, Case)>,
        sale: &Sale,
        at: base::Timestamp,
    ) -> Result<Vec<Option<Outcome>>, Error> {
        let mut outcomes: Vec<Option<Outcome>> = payments.iter().map(|_| None).collect();
        let (places, mut cases): (Vec<usize>, Vec<Case>) = cases.into_iter().unzip();
        let granted = self.sell_held(tx, &mut cases, sale, at).await?;
        let sold = places.into_iter().zip(cases).zip(granted);
        // What could not be granted had no effect: alone it is repeated with a later time, or must be refunded.
        let sold = sold.filter(|(_, granted)| matches!(granted, Granted::Yes));
        let mut orders = Vec::new();
        for ((place, Case { mut order, .. }), _) in sold {
            order.state = OrderState::Paid;
            order.payment = Some(payments[place].webhook.payment.clone());
            order.version += 1;
            outcomes[place] = Some(Outcome::Changed(order.state));
            orders.push((order, payments[place]));
        }
        store::save(tx, orders.iter().map(|(order, _)| order));
        store::add_webhooks(tx, orders.iter().map(|(order, payment)| (&payment.webhook, order.state)));
        let events = orders.iter().map(|(order, payment)| (order, payment.trace.as_deref()));
        self.append(tx, events, &sale.resource)?;
        Ok(outcomes)
    }
}

/// Locks the orders and reservations of payments, as far as nobody else holds them. Returns those that are plain sales of held units,
/// each with the place of its payment.
async fn plain_sales(tx: &mut Tx, payments: &[&Payment]) -> Result<Vec<(usize, Case)>, Error> {
    let ids: Vec<OrderId> = payments.iter().map(|payment| payment.order.id).collect();
    let orders = store::lock_free(tx, &ids).await?;
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<&str> = payments.iter().map(|payment| payment.webhook.id.as_str()).collect();
    let mut known = store::known_webhooks(tx, &ids).await?;
    let ids: Vec<ReservationId> = orders.iter().map(|order| order.reservation).collect();
    let held = stock::store::lock_held(tx, &ids, Payable::UntilExpired).await?;
    let mut orders: HashMap<OrderId, Order> = orders.into_iter().map(|order| (order.id, order)).collect();
    let mut held: HashMap<ReservationId, _> = held.into_iter().map(|held| (held.id, held)).collect();
    let mut case = |payment: &Payment| {
        let Payment { webhook, order: before, trace } = payment;
        // Removed: of two payments of one order the first is sold, and the second is judged after it.
        let order = orders.remove(&webhook.order)?;
        // The locks are on the entitlement of the account that was read. A user who was erased since has another.
        let is_same_owner = (order.user, order.account) == (before.user, before.account);
        let is_plain = is_same_owner && webhook.sells(&order) && known.insert(webhook.id.clone());
        let reservation = held.remove(&order.reservation).filter(|_| is_plain)?;
        Some(Case { order, reservation, trace: trace.clone() })
    };
    Ok(payments.iter().enumerate().filter_map(|(at, payment)| Some((at, case(payment)?))).collect())
}

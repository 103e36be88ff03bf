//! The last check before a delivery is sent.
//!
//! A delivery may wait for long: for a destination, for a worker, as a dead letter. In the meantime its notification may have expired, or
//! another process may have erased its user.

use base::Clock;
use base::error::chain;
use base::id::Uuid;
use db::Db;
use work_queue::{Handler, Item, ItemOutcome};

use crate::metrics::Metrics;
use crate::model::Notification;
use crate::store;

/// Finds deliveries that must not be sent any more. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct DeliveryCheck {
    db: Db,
    clock: Clock,
    metrics: Metrics,
}

/// Passes the deliveries that pass the check on to a handler. A delivery that has expired or whose user is erased is done without being
/// sent. One that cannot be read fails.
#[derive(Debug)]
pub(super) struct CheckedHandler<H> {
    pub(super) table: &'static str,
    pub(super) check: DeliveryCheck,
    pub(super) handler: H,
}

impl DeliveryCheck {
    pub fn new(db: Db, clock: Clock, metrics: Metrics) -> Self {
        Self { db, clock, metrics }
    }

    /// Wraps the handler of a queue with this check.
    pub(super) fn before<H>(&self, table: &'static str, handler: H) -> CheckedHandler<H> {
        CheckedHandler { table, check: self.clone(), handler }
    }

    /// Returns for each item the reason to skip it, if there is one.
    async fn skip_reasons(
        &self,
        table: &'static str,
        items: &[Item],
    ) -> Result<Vec<Option<SkipReason>>, db::Error> {
        let users: Vec<Uuid> = items.iter().map(|item| item.user).collect();
        let erased = store::erased(&self.db, &users).await?;
        let now = self.clock.now().as_millis();
        let reason = |item: &Item| match serde_json::from_slice::<Notification>(&item.payload) {
            _ if erased.contains(&item.user) => Some(SkipReason::Erased),
            Err(cause) => Some(SkipReason::Unreadable(self.db.corrupt(table, item.id, cause).to_string())),
            Ok(read) => read.expires_at.filter(|end| *end <= now).map(|_| SkipReason::Expired),
        };
        Ok(items.iter().map(reason).collect())
    }
}

/// Why a delivery is not sent.
enum SkipReason {
    Erased,
    Expired,
    /// The payload is corrupt: the delivery becomes a dead letter.
    Unreadable(String),
}

impl<H: Handler> Handler for CheckedHandler<H> {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let reasons = match self.check.skip_reasons(self.table, items).await {
            Ok(reasons) => reasons,
            Err(error) => return vec![ItemOutcome::NotAttempted(chain(&error)); items.len()],
        };
        let passed = items.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
        let passed: Vec<Item> = passed.map(|(item, _)| item.clone()).collect();
        let delivered = if passed.is_empty() { Vec::new() } else { self.handler.handle(&passed).await };
        let mut delivered = delivered.into_iter();
        let skip = |reason| {
            self.check.metrics.withheld(reason);
            ItemOutcome::Done
        };
        let outcome = |reason: &Option<SkipReason>| match reason {
            Some(SkipReason::Erased) => skip("erased"),
            Some(SkipReason::Expired) => skip("expired"),
            Some(SkipReason::Unreadable(cause)) => ItemOutcome::Failed(cause.clone()),
            None => delivered.next().unwrap_or_else(|| {
                ItemOutcome::Retry("the handler returned no outcome for this item".to_owned())
            }),
        };
        reasons.iter().map(outcome).collect()
    }
}

//! The last look before something is delivered.
//!
//! A delivery may wait for long: for a destination, for a worker, as a dead letter. Meanwhile its notification may have expired, or its
//! user may have been erased by a process that this worker does not hear of.

use base::Clock;
use base::error::chain;
use base::id::Uuid;
use db::Db;
use work::{Handler, Item, Outcome};

use crate::metrics::Metrics;
use crate::model::Notification;
use crate::store;

/// Finds deliveries that are not to be made any more. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Check {
    db: Db,
    clock: Clock,
    metrics: Metrics,
}

/// Delivers what passes the check. The rest is done, and nobody is told.
#[derive(Debug)]
pub(super) struct Checked<H> {
    pub(super) check: Check,
    pub(super) to: H,
}

impl Check {
    pub fn new(db: Db, clock: Clock, metrics: Metrics) -> Self {
        Self { db, clock, metrics }
    }

    /// Why each of the items is not to be delivered any more, if it is not.
    async fn withheld(&self, items: &[Item]) -> Result<Vec<Option<&'static str>>, db::Error> {
        let users: Vec<Uuid> = items.iter().map(|item| item.user).collect();
        let erased = store::erased(&self.db, &users).await?;
        let now = self.clock.now().as_millis();
        let has_expired = |item: &Item| {
            // The handler says what is wrong with one that cannot be read.
            let read: Option<Notification> = serde_json::from_slice(&item.payload).ok();
            read.and_then(|read| read.expires_at).is_some_and(|end| end <= now)
        };
        let why = |item: &Item| {
            if erased.contains(&item.user) { Some("erased") } else { has_expired(item).then_some("expired") }
        };
        Ok(items.iter().map(why).collect())
    }
}

impl<H: Handler> Handler for Checked<H> {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let withheld = match self.check.withheld(items).await {
            Ok(withheld) => withheld,
            Err(error) => return vec![Outcome::NotTried(chain(&error)); items.len()],
        };
        let passed = items.iter().zip(&withheld).filter(|(_, why)| why.is_none());
        let passed: Vec<Item> = passed.map(|(item, _)| item.clone()).collect();
        let delivered = if passed.is_empty() { Vec::new() } else { self.to.handle(&passed).await };
        let mut delivered = delivered.into_iter();
        let outcome = |why: &Option<&'static str>| match why {
            Some(why) => {
                self.check.metrics.withheld(why);
                Outcome::Done
            }
            None => delivered
                .next()
                .unwrap_or_else(|| Outcome::Again("the handler did not say what came of it".to_owned())),
        };
        withheld.iter().map(outcome).collect()
    }
}

//! The last look before something is delivered.
//!
//! A delivery may wait for long: for a destination, for a worker, as a dead letter. Meanwhile its notification may have expired, or its
//! user may have been erased by a process that this worker does not hear of.

use base::Clock;
use base::error::chain;
use base::id::Uuid;
use db::Db;
use work_queue::{Handler, Item, Outcome};

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

/// Delivers what passes the check. A delivery that has expired, or whose user is erased, counts as done without being sent; one that cannot be
/// read has failed.
#[derive(Debug)]
pub(super) struct Checked<H> {
    pub(super) table: &'static str,
    pub(super) check: Check,
    pub(super) to: H,
}

impl Check {
    pub fn new(db: Db, clock: Clock, metrics: Metrics) -> Self {
        Self { db, clock, metrics }
    }

    /// Puts the check before a handler of the items of a table.
    pub(super) fn before<H>(&self, table: &'static str, to: H) -> Checked<H> {
        Checked { table, check: self.clone(), to }
    }

    /// Why each of the items is not to be delivered, if it is not.
    async fn withheld(
        &self,
        table: &'static str,
        items: &[Item],
    ) -> Result<Vec<Option<Withheld>>, db::Error> {
        let users: Vec<Uuid> = items.iter().map(|item| item.user).collect();
        let erased = store::erased(&self.db, &users).await?;
        let now = self.clock.now().as_millis();
        let why = |item: &Item| match serde_json::from_slice::<Notification>(&item.payload) {
            _ if erased.contains(&item.user) => Some(Withheld::Erased),
            Err(cause) => Some(Withheld::Unreadable(self.db.corrupt(table, item.id, cause).to_string())),
            Ok(read) => read.expires_at.filter(|end| *end <= now).map(|_| Withheld::Expired),
        };
        Ok(items.iter().map(why).collect())
    }
}

/// Why a delivery is not made.
enum Withheld {
    Erased,
    Expired,
    /// It is a dead letter.
    Unreadable(String),
}

impl<H: Handler> Handler for Checked<H> {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let withheld = match self.check.withheld(self.table, items).await {
            Ok(withheld) => withheld,
            Err(error) => return vec![Outcome::NotTried(chain(&error)); items.len()],
        };
        let passed = items.iter().zip(&withheld).filter(|(_, why)| why.is_none());
        let passed: Vec<Item> = passed.map(|(item, _)| item.clone()).collect();
        let delivered = if passed.is_empty() { Vec::new() } else { self.to.handle(&passed).await };
        let mut delivered = delivered.into_iter();
        let withhold = |why| {
            self.check.metrics.withheld(why);
            Outcome::Done
        };
        let outcome = |why: &Option<Withheld>| match why {
            Some(Withheld::Erased) => withhold("erased"),
            Some(Withheld::Expired) => withhold("expired"),
            Some(Withheld::Unreadable(cause)) => Outcome::Failed(cause.clone()),
            None => delivered
                .next()
                .unwrap_or_else(|| Outcome::Again("the handler did not say what came of it".to_owned())),
        };
        withheld.iter().map(outcome).collect()
    }
}

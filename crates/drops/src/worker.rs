//! The background loops of drops. Any number of processes may run them at once: SQL decides which one does the work.

use std::time::Duration;

use runtime::lifecycle::{Drain, LoopError};
use service::Loop;

use crate::error::Error;
use crate::gauges::Gauges;
use crate::orders::Orders;
use crate::room::Room;
use crate::service::Drops;
use crate::stock::Stock;

/// How often to look for due drops. Far shorter than a period, so that cycles start on time.
const TICK: Duration = Duration::from_millis(250);
/// How often to look for expired reservations.
const EXPIRE_EVERY: Duration = Duration::from_millis(500);
/// How many reservations one transaction expires.
const EXPIRE_BATCH: u32 = 500;
/// How often to look for ended drops in which players still wait.
const END_EVERY: Duration = Duration::from_secs(1);
/// How often old webhook ids are removed.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// How often gauges are read from the stores.
const GAUGES_EVERY: Duration = Duration::from_secs(5);
/// The longest restart delay of loops that players depend on, however long a store was unreachable.
const LONGEST_DOWNTIME: Duration = Duration::from_secs(1);

/// What the loops work on.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) drops: Drops,
    pub(crate) room: Room,
    pub(crate) stock: Stock,
    pub(crate) orders: Orders,
    pub(crate) webhook_retention: Duration,
    pub(crate) gauges: Gauges,
    pub(crate) reconcile_every: Duration,
}

impl Worker {
    pub(crate) fn loops(self) -> Vec<Loop> {
        // Opening, closing, admitting and expiring append events.
        let admit =
            Loop::new(
                "drops-admissions",
                self.clone(),
                |worker, drain| async move { worker.admit(drain).await },
            );
        let reconcile = Loop::new("drops-reconciler", self.clone(), |worker, drain| async move {
            worker.reconcile(drain).await
        });
        let expire = Loop::new("drops-reservations", self.clone(), |worker, drain| async move {
            worker.expire(drain).await
        });
        // Separate from the admissions: notifying a long line must not delay the cycles of other drops.
        let end =
            Loop::new("drops-endings", self.clone(), |worker, drain| async move { worker.end(drain).await });
        let prune =
            Loop::new(
                "drops-webhooks",
                self.clone(),
                |worker, drain| async move { worker.prune(drain).await },
            );
        let gauges =
            Loop::new("drops-gauges", self, |worker, drain| async move { worker.gauge(drain).await });
        vec![
            admit.with_max_downtime(LONGEST_DOWNTIME).stops_before(outbox::RELAY),
            reconcile.with_max_downtime(LONGEST_DOWNTIME),
            expire.with_max_downtime(LONGEST_DOWNTIME),
            end.stops_before(outbox::RELAY),
            prune,
            gauges,
        ]
    }

    /// Opens and closes due drops and runs due admission cycles. Tries all three, then returns the first error.
    pub(crate) async fn tick(&self) -> Result<(), Error> {
        let opened = self.drops.open_due().await.map(drop);
        let closed = self.drops.close_due().await.map(drop);
        let cycled = self.room.tick().await.map(drop);
        opened.and(closed).and(cycled)
    }

    async fn admit(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.tick().await?;
            if !drain.sleep(TICK).await {
                return Ok(());
            }
        }
    }

    /// Reconciles immediately, then periodically: a line that Redis lost is rebuilt right after the start.
    async fn reconcile(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.room.reconcile().await?;
            if !drain.sleep(self.reconcile_every).await {
                return Ok(());
            }
        }
    }

    async fn expire(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.stock.expire(EXPIRE_BATCH).await? >= EXPIRE_BATCH as usize && !drain.is_requested() {}
            if !drain.sleep(EXPIRE_EVERY).await {
                return Ok(());
            }
        }
    }

    /// Notifies players who still wait for an ended drop.
    async fn end(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.room.end_waiting().await?;
            if !drain.sleep(END_EVERY).await {
                return Ok(());
            }
        }
    }

    async fn prune(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.orders.prune_webhooks(self.webhook_retention).await?;
            if !drain.sleep(PRUNE_EVERY).await {
                return Ok(());
            }
        }
    }

    async fn gauge(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.gauges.tick().await?;
            if !drain.sleep(GAUGES_EVERY).await {
                return Ok(());
            }
        }
    }
}

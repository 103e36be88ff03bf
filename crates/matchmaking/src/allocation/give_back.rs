//! Sends allocators the matches that were abandoned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::error::chain;
use base::id::ProcessId;
use db::Db;
use futures::future::join_all;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use work_queue::{Handler, Item, ItemOutcome, Report, RetentionCleaner, Worker};

use super::{AbandonReason, AbandonedMatch, Allocations};
use crate::engine::Assigner;

/// Works through the queue of give-back calls. Any number may run at once.
#[derive(Debug)]
pub struct GiveBackWorker {
    worker: Worker<GiveBackHandler>,
    cleaner: RetentionCleaner,
}

struct GiveBackHandler {
    /// By allocator name.
    assigners: BTreeMap<String, Arc<dyn Assigner>>,
    db: Db,
    /// How long after the request an unanswered match is given back.
    after: Duration,
}

impl std::fmt::Debug for GiveBackHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GiveBackHandler").field("assigners", &self.assigners.keys()).finish_non_exhaustive()
    }
}

impl GiveBackWorker {
    /// Creates the worker with all configured assigners, including those without an allocator.
    pub fn new(
        id: ProcessId,
        allocations: &Allocations,
        assigners: impl IntoIterator<Item = Arc<dyn Assigner>>,
        after: Duration,
    ) -> Self {
        let named = |assigner: Arc<dyn Assigner>| {
            let name = assigner.allocator().map(|allocator| allocator.name().to_owned());
            name.map(|name| (name, assigner))
        };
        let assigners = assigners.into_iter().filter_map(named).collect();
        let (queue, db) = (allocations.queue().clone(), allocations.0.db.clone());
        let worker = Worker::new(queue.clone(), GiveBackHandler { assigners, db, after }, id);
        Self { worker, cleaner: RetentionCleaner::new(queue) }
    }

    /// Makes the calls that are due, once.
    pub async fn tick(&self) -> Result<Report, LoopError> {
        self.worker.tick().await
    }

    /// Makes calls until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.worker.run(drain).await
    }

    /// Removes finished calls after their retention time, until `drain` is requested.
    pub async fn clean(&self, drain: Drain) -> Result<(), LoopError> {
        self.cleaner.run(drain).await
    }
}

impl Handler for GiveBackHandler {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        // `asked_at` was written by this clock.
        match self.db.now().await {
            Ok(now) => join_all(items.iter().map(|item| self.call(item, now))).await,
            Err(error) => vec![ItemOutcome::NotAttempted(chain(&error)); items.len()],
        }
    }
}

impl GiveBackHandler {
    async fn call(&self, item: &Item, now: Timestamp) -> ItemOutcome {
        let abandoned: AbandonedMatch = match serde_json::from_slice(&item.payload) {
            Ok(abandoned) => abandoned,
            Err(error) => return ItemOutcome::Failed(chain(&error)),
        };
        let assigner = self.assigners.get(&abandoned.assigner);
        let Some(allocator) = assigner.and_then(|assigner| assigner.allocator()) else {
            return ItemOutcome::Failed(format!(
                "[matchmaking.assigners.{}] is no longer configured",
                abandoned.assigner
            ));
        };
        let wait = self.wait(&abandoned, now);
        if !wait.is_zero() {
            let cause = "the allocator may still be processing the request".to_owned();
            return ItemOutcome::Postponed { after: wait, cause };
        }
        match allocator.give_back(&abandoned).await {
            Ok(()) => ItemOutcome::Done,
            Err(error) => {
                let cause = chain(error.as_ref());
                tracing::warn!(
                    match_id = abandoned.match_id,
                    assigner = abandoned.assigner,
                    cause,
                    "Cannot give back a server; retrying"
                );
                ItemOutcome::Retry(cause)
            }
        }
    }

    /// Returns how long to wait before the call. A call that arrives before the allocation request would give nothing
    /// back.
    fn wait(&self, abandoned: &AbandonedMatch, now: Timestamp) -> Duration {
        let due = Timestamp::from_millis(abandoned.asked_at).after(self.after);
        let may_be_under_way = abandoned.reason == AbandonReason::Unanswered && due > now;
        if may_be_under_way { due.distance(now) } else { Duration::ZERO }
    }
}

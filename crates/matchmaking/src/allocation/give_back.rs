//! Tells allocators of matches that were abandoned.

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
use work_queue::{Handler, Item, Keeper, Outcome, Report, Worker};

use super::{AbandonedMatch, Allocations, Reason};
use crate::engine::Assigner;

/// Works off the queue of give-back calls. Any number run at once.
#[derive(Debug)]
pub struct GiveBack {
    worker: Worker<Calls>,
    keeper: Keeper,
}

struct Calls {
    /// By the names of their allocators.
    assigners: BTreeMap<String, Arc<dyn Assigner>>,
    db: Db,
    /// How long after the request a match that was not answered for is given back.
    after: Duration,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").field("assigners", &self.assigners.keys()).finish_non_exhaustive()
    }
}

impl GiveBack {
    /// With all assigners that are configured, those without an allocator included.
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
        let worker = Worker::new(queue.clone(), Calls { assigners, db, after }, id);
        Self { worker, keeper: Keeper::new(queue) }
    }

    /// Makes the calls that are due, once.
    pub async fn tick(&self) -> Result<Report, LoopError> {
        self.worker.tick().await
    }

    /// Makes calls until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        self.worker.run(drain).await
    }

    /// Removes calls that have been made for long enough, until told to stop.
    pub async fn keep(&self, drain: Drain) -> Result<(), LoopError> {
        self.keeper.run(drain).await
    }
}

impl Handler for Calls {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        // Requests were noted by this clock.
        match self.db.now().await {
            Ok(now) => join_all(items.iter().map(|item| self.call(item, now))).await,
            Err(error) => vec![Outcome::NotTried(chain(&error)); items.len()],
        }
    }
}

impl Calls {
    async fn call(&self, item: &Item, now: Timestamp) -> Outcome {
        let abandoned: AbandonedMatch = match serde_json::from_slice(&item.payload) {
            Ok(abandoned) => abandoned,
            Err(error) => return Outcome::Failed(chain(&error)),
        };
        let assigner = self.assigners.get(&abandoned.assigner);
        let Some(allocator) = assigner.and_then(|assigner| assigner.allocator()) else {
            return Outcome::Failed(format!(
                "there is no [matchmaking.assigners.{}] any more",
                abandoned.assigner
            ));
        };
        let wait = self.wait(&abandoned, now);
        if !wait.is_zero() {
            let cause = "the allocator may still be at work on the request".to_owned();
            return Outcome::Later { after: wait, cause };
        }
        match allocator.give_back(&abandoned).await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                let cause = chain(error.as_ref());
                tracing::warn!(
                    match_id = abandoned.match_id,
                    assigner = abandoned.assigner,
                    cause,
                    "not given back yet"
                );
                Outcome::Again(cause)
            }
        }
    }

    /// Returns how long the call has to wait: a call that overtakes the request that it is about gives nothing back.
    fn wait(&self, abandoned: &AbandonedMatch, now: Timestamp) -> Duration {
        let due = Timestamp::from_millis(abandoned.asked_at).after(self.after);
        let may_be_under_way = abandoned.reason == Reason::Unanswered && due > now;
        if may_be_under_way { due.distance(now) } else { Duration::ZERO }
    }
}

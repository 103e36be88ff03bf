//! Gives back the servers of dead engines, and of engines that could not write their matches.

use std::collections::HashSet;
use std::time::Duration;

use runtime::Drain;
use runtime::lifecycle::LoopError;

use super::{AbandonReason, Allocations, store};
use crate::model::MatchId;
use crate::store::Store;

/// The longest time between two sweeps.
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time between two sweeps.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Gives back allocations that no engine settled. Any number may run at once. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Sweeper {
    allocations: Allocations,
    store: Store,
    /// The minimum age of an allocation.
    after: Duration,
}

impl Sweeper {
    pub fn new(allocations: Allocations, store: Store, after: Duration) -> Self {
        Self { allocations, store, after }
    }

    /// Gives back overdue allocations, once. Returns how many.
    ///
    /// The order prevents a match from being both made and abandoned. After the mark no engine can assign the match. A
    /// match that was assigned before is either unrecorded, and left to the recovery, or recorded, and its row is gone.
    pub async fn tick(&self) -> Result<usize, LoopError> {
        let (open, overdue) = store::overdue(&self.allocations.0.db, self.after).await?;
        self.allocations.0.metrics.allocations_open.set(open);
        if overdue.is_empty() {
            return Ok(0);
        }
        self.store.mark_abandoned(&overdue).await?;
        let unrecorded: HashSet<MatchId> = self.store.unrecorded_matches().await?;
        let abandoned: Vec<(MatchId, AbandonReason)> = overdue
            .into_iter()
            .filter(|id| !unrecorded.contains(id))
            .map(|id| (id, AbandonReason::Unsettled))
            .collect();
        Ok(self.allocations.settle(&[], &abandoned).await?)
    }

    /// Sweeps until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let pause = (self.after / 4).clamp(MIN_INTERVAL, MAX_INTERVAL);
        loop {
            let given_back = self.tick().await?;
            let pause = if given_back >= store::BATCH { MIN_INTERVAL } else { pause };
            if !drain.sleep(pause).await {
                return Ok(());
            }
        }
    }
}

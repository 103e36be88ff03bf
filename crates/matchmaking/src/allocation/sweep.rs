//! Gives back what engines left behind: those that died between the request and the write, or could not write.

use std::collections::HashSet;
use std::time::Duration;

use runtime::Drain;
use runtime::lifecycle::LoopError;

use super::{Allocations, Reason, store};
use crate::model::MatchId;
use crate::store::Store;

/// The longest time between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// The shortest.
const BREATH: Duration = Duration::from_millis(50);

/// Gives back allocations that nobody settled. Any number run at once. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Sweeper {
    allocations: Allocations,
    store: Store,
    /// How old an allocation must be.
    after: Duration,
}

impl Sweeper {
    pub fn new(allocations: Allocations, store: Store, after: Duration) -> Self {
        Self { allocations, store, after }
    }

    /// Gives back allocations that are overdue, once. Returns how many.
    ///
    /// The order keeps a match from being both made and abandoned. After the mark nobody makes the match. If it was made before, it is
    /// either still unrecorded, and left to the recovery, or recorded, and then its row is gone.
    pub async fn tick(&self) -> Result<usize, LoopError> {
        let (open, overdue) = store::overdue(&self.allocations.0.db, self.after).await?;
        self.allocations.0.metrics.allocations_open.set(open);
        if overdue.is_empty() {
            return Ok(0);
        }
        self.store.mark_abandoned(&overdue).await?;
        let unrecorded: HashSet<MatchId> = self.store.unrecorded_matches().await?;
        let abandoned: Vec<(MatchId, Reason)> = overdue
            .into_iter()
            .filter(|id| !unrecorded.contains(id))
            .map(|id| (id, Reason::Unsettled))
            .collect();
        Ok(self.allocations.settle(&[], &abandoned).await?)
    }

    /// Looks until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let pause = (self.after / 4).clamp(BREATH, INTERVAL);
        loop {
            let given_back = self.tick().await?;
            let pause = if given_back >= store::AT_ONCE { BREATH } else { pause };
            if !drain.sleep(pause).await {
                return Ok(());
            }
        }
    }
}

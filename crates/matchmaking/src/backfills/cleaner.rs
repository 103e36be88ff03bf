//! Deletes expired backfills, so that their tickets keep waiting for another match.

use std::time::Duration;

use runtime::Drain;
use runtime::lifecycle::LoopError;

use crate::metrics::Metrics;
use crate::store::{ExpiredBackfills, Store};

/// The longest time between two steps.
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// The shortest time between two steps.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Deletes expired backfills. Any number may run at once. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct BackfillCleaner {
    store: Store,
    metrics: Metrics,
}

impl BackfillCleaner {
    pub fn new(store: Store, metrics: Metrics) -> Self {
        Self { store, metrics }
    }

    /// Deletes some expired backfills and releases their tickets.
    pub async fn tick(&self) -> Result<ExpiredBackfills, LoopError> {
        let expired = self.store.expire_backfills().await?;
        self.metrics.backfills.set(expired.left.try_into().unwrap_or(i64::MAX));
        self.metrics.backfills_expired.inc_by(expired.backfills as u64);
        if expired.backfills > 0 {
            tracing::info!(
                backfills = expired.backfills,
                tickets = expired.tickets,
                "Deleted backfills whose game servers did not acknowledge them in time; their tickets keep waiting"
            );
        }
        Ok(expired)
    }

    /// Cleans up until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let pause = (self.store.backfill_expiry() / 4).clamp(MIN_INTERVAL, MAX_INTERVAL);
        loop {
            let expired = self.tick().await?;
            let pause = if expired.has_more { MIN_INTERVAL } else { pause };
            if !drain.sleep(pause).await {
                return Ok(());
            }
        }
    }
}

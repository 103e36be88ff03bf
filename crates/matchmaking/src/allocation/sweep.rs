//! Gives back what engines left behind: those that died between the request and the write, or could not write.

use std::collections::HashSet;
use std::time::Duration;

use base::id::Uuid;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use sqlx::AssertSqlSafe;

use super::{Allocations, Reason};
use crate::model::MatchId;
use crate::store::Store;

/// How many rows one step takes.
const AT_ONCE: i64 = 500;
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
        let (open, overdue) = self.look().await?;
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

    /// Returns how many allocations are open, and the oldest that are overdue.
    async fn look(&self) -> Result<(i64, Vec<MatchId>), db::Error> {
        const COUNT: &str = "SELECT COUNT(*) FROM matchmaking_allocation";
        let db = &self.allocations.0.db;
        let text = AssertSqlSafe(format!(
            "SELECT match_id FROM matchmaking_allocation WHERE asked_at < {} - ? ORDER BY asked_at, match_id LIMIT {AT_ONCE}",
            db.dialect().now()
        ));
        let after = i64::try_from(self.after.as_millis()).unwrap_or(i64::MAX);
        let reading = async {
            let mut connection = db.connection().await?;
            let (open,): (i64,) = db::on!(connection, raw => sqlx::query_as(COUNT).fetch_one(raw).await?);
            if open == 0 {
                return Ok((0, Vec::new()));
            }
            let rows: Vec<(Vec<u8>,)> =
                db::on!(connection, raw => sqlx::query_as(text).bind(after).fetch_all(raw).await?);
            let id = |(id,): (Vec<u8>,)| Uuid::from_slice(&id).ok().map(MatchId::from_uuid);
            Ok::<_, db::Error>((open, rows.into_iter().filter_map(id).collect()))
        };
        db.bounded(reading).await
    }

    /// Looks until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let pause = (self.after / 4).clamp(BREATH, INTERVAL);
        loop {
            let given_back = self.tick().await?;
            let pause = if given_back >= AT_ONCE as usize { BREATH } else { pause };
            if !drain.sleep(pause).await {
                return Ok(());
            }
        }
    }
}

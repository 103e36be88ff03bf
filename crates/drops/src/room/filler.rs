//! Fills missing lines on demand: the line of a new drop, or all lines after Redis was emptied.

use std::time::Duration;

use runtime::batch::Batcher;

use super::RoomInner;
use crate::DropId;
use crate::room::ReconcileReport;

/// How long a caller waits for the fill at most. The line of a new drop is filled within milliseconds. A line of a million players takes
/// seconds; positions are unknown until then.
const WAIT: Duration = Duration::from_millis(300);

/// Fills each missing line once, however many players ask for their position. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct LineFiller(Batcher<DropId, ()>);

impl LineFiller {
    pub(super) fn new(inner: RoomInner) -> Self {
        // One lane: requests that arrive during a fill form the next batch and find the line filled.
        Self(Batcher::new(1, usize::MAX, move |mut drops: Vec<DropId>| {
            let inner = inner.clone();
            async move {
                let requests = drops.len();
                drops.sort_unstable();
                drops.dedup();
                for drop in drops {
                    inner.fill_missing(drop).await;
                }
                vec![(); requests]
            }
        }))
    }

    /// Fills a line that has no epoch. Returns when it is filled, has failed, or takes longer than [`WAIT`]; then it continues in the
    /// background.
    pub(super) async fn fill(&self, drop: DropId) {
        let filling = self.0.run(drop);
        let _in_time = tokio::time::timeout(WAIT, filling).await;
    }
}

impl RoomInner {
    /// Fills the line unless it has an epoch. If that fails, the reconciler tries again.
    async fn fill_missing(&self, drop: DropId) {
        let filling = async {
            match self.line.epoch(drop).await? {
                Some(_) => Ok(None),
                None => self.rebuild(drop).await,
            }
        };
        match filling.await {
            Ok(filled) => {
                let rebuilt = u64::from(filled.is_some());
                self.metrics.repaired(&ReconcileReport { rebuilt, ..ReconcileReport::default() });
            }
            Err(error) => self.line_failed("fill", drop, &error),
        }
    }
}

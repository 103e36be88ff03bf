//! Copies committed joins and leaves to the line, off the critical path of joins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use runtime::batch::Batcher;

use super::metrics::RoomMetrics;
use crate::DropId;
use crate::line::Line;
use crate::model::LineMember;

/// How long a join waits for the line at most. A healthy Redis answers within a millisecond. A silent one must not delay joins, which are
/// already committed in SQL.
const WAIT: Duration = Duration::from_millis(100);

/// What a batch of joins and leaves changes in the line.
#[derive(Clone, Debug)]
pub(super) struct LineChange {
    pub(super) drop: DropId,
    /// Players to remove, each with the place they had.
    pub(super) removed: Vec<LineMember>,
    /// Players who wait now and did not before.
    pub(super) added: Vec<LineMember>,
}

/// Copies changes to the line in commit order. Failures are counted and left to the reconciler. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct LineCopier {
    batcher: Batcher<LineChange, ()>,
    /// Whether a copy took longer than [`WAIT`]. Until one succeeds again, joins do not wait for their copies.
    is_behind: Arc<AtomicBool>,
}

impl LineCopier {
    pub(super) fn new(line: Line, metrics: RoomMetrics) -> Self {
        let is_behind = Arc::new(AtomicBool::new(false));
        let behind = is_behind.clone();
        // One lane keeps the order. Changes that arrive during a copy form the next batch.
        let batcher = Batcher::new(1, usize::MAX, move |changes: Vec<LineChange>| {
            let (line, metrics, behind) = (line.clone(), metrics.clone(), behind.clone());
            async move {
                let count = changes.len();
                copy_all(&line, &metrics, &behind, changes).await;
                vec![(); count]
            }
        });
        Self { batcher, is_behind }
    }

    /// Copies a change. Returns when it is in the line, has failed, or takes longer than [`WAIT`]; then it continues in the background.
    pub(super) async fn copy(&self, change: LineChange) {
        let batcher = self.batcher.clone();
        let copying = async move { batcher.run(change).await };
        if self.is_behind.load(Ordering::Relaxed) {
            // Polled once to queue the change in order. The batcher then copies it without this future.
            let _is_done = copying.now_or_never();
        } else if tokio::time::timeout(WAIT, copying).await.is_err() {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }
}

async fn copy_all(line: &Line, metrics: &RoomMetrics, behind: &AtomicBool, changes: Vec<LineChange>) {
    let mut changes = changes.into_iter();
    while let Some(LineChange { drop, removed, added }) = changes.next() {
        let mut step = "remove";
        let copying = async {
            if !removed.is_empty() {
                line.remove(drop, &removed).await?;
            }
            step = "add";
            if added.is_empty() { Ok(()) } else { line.add(drop, &added).await }
        };
        if let Err(error) = copying.await {
            metrics.line_failed(step);
            // Each of the other changes would wait as long for an unreachable Redis. The reconciler repairs them all.
            let left = changes.len();
            let cause = base::error::chain(&error);
            tracing::warn!(outage = "redis", %drop, step, left, cause, "the line in Redis is out of date; the reconciler will repair it");
            return;
        }
    }
    behind.store(false, Ordering::Relaxed);
}

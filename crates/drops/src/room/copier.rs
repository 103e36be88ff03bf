//! Copying what was committed to the line, beside the path of joins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use runtime::batch::Batcher;

use super::metrics::RoomMetrics;
use crate::DropId;
use crate::line::Line;
use crate::model::Spot;

/// How long joins wait for the line at most. A healthy Redis answers within a millisecond; a silent one must not hold up joins, which are
/// true in SQL already.
const WAIT: Duration = Duration::from_millis(100);

/// What a batch of joins and leaves has changed.
#[derive(Clone, Debug)]
pub(super) struct LineChange {
    pub(super) drop: DropId,
    /// Spots that nobody has any more.
    pub(super) gone: Vec<Spot>,
    /// Players who wait now and did not before.
    pub(super) waiting: Vec<Spot>,
}

/// Copies changes to the line in the order in which they were committed. Cheap to clone; clones share state.
///
/// What fails is counted and left to the reconciler.
#[derive(Clone, Debug)]
pub(super) struct Copier {
    batcher: Batcher<LineChange, ()>,
    /// Whether a copy took longer than joins wait. Nobody waits for the next ones until one has succeeded.
    is_behind: Arc<AtomicBool>,
}

impl Copier {
    pub(super) fn new(line: Line, metrics: RoomMetrics) -> Self {
        let is_behind = Arc::new(AtomicBool::new(false));
        let behind = is_behind.clone();
        // One lane keeps the order. All that gathers while a copy is under way is the next one.
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

    /// Copies a change. Returns when it is in the line, or has failed, or takes too long; then it goes on by itself.
    pub(super) async fn copy(&self, change: LineChange) {
        let batcher = self.batcher.clone();
        let copying = async move { batcher.run(change).await };
        if self.is_behind.load(Ordering::Relaxed) {
            // The first step of it takes its turn; the rest happens whether it is waited for or not.
            let _is_done = copying.now_or_never();
        } else if tokio::time::timeout(WAIT, copying).await.is_err() {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }
}

async fn copy_all(line: &Line, metrics: &RoomMetrics, behind: &AtomicBool, changes: Vec<LineChange>) {
    let mut changes = changes.into_iter();
    while let Some(LineChange { drop, gone, waiting }) = changes.next() {
        let mut step = "remove";
        let copying = async {
            if !gone.is_empty() {
                line.remove(drop, &gone).await?;
            }
            step = "add";
            if waiting.is_empty() { Ok(()) } else { line.add(drop, &waiting).await }
        };
        if let Err(error) = copying.await {
            metrics.line_failed(step);
            // Each of the others would wait as long for a Redis that does not answer. The reconciler adds them all.
            let left = changes.len();
            let cause = base::error::chain(&error);
            tracing::warn!(outage = "redis", %drop, step, left, cause, "the line is not up to date");
            return;
        }
    }
    behind.store(false, Ordering::Relaxed);
}

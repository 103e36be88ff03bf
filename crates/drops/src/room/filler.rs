//! Filling lines that players ask for and that are not there: of a new drop, or after Redis was emptied.

use std::time::Duration;

use runtime::batch::Batcher;

use super::Rows;
use crate::DropId;
use crate::room::Reconciled;

/// How long a question waits for the line at most. The line of a new drop is filled within milliseconds. One of a million players takes seconds:
/// the position is unknown until then.
const WAIT: Duration = Duration::from_millis(300);

/// Fills missing lines, each once however many players ask. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct Filler(Batcher<DropId, ()>);

impl Filler {
    pub(super) fn new(rows: Rows) -> Self {
        // One lane: questions that come while a line is being filled make the next batch, and find it filled.
        Self(Batcher::new(1, usize::MAX, move |mut drops: Vec<DropId>| {
            let rows = rows.clone();
            async move {
                let questions = drops.len();
                drops.sort_unstable();
                drops.dedup();
                for drop in drops {
                    rows.fill_missing(drop).await;
                }
                vec![(); questions]
            }
        }))
    }

    /// Fills a line that has no epoch. Returns when it is filled, or has failed, or takes too long; then it goes on by itself.
    pub(super) async fn fill(&self, drop: DropId) {
        let filling = self.0.run(drop);
        let _in_time = tokio::time::timeout(WAIT, filling).await;
    }
}

impl Rows {
    /// The reconciler tries again what fails.
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
                self.metrics.mended(&Reconciled { rebuilt, ..Reconciled::default() });
            }
            Err(error) => self.line_failed("fill", drop, &error),
        }
    }
}

//! Opens and closes drops that are due.

use base::error::Coded;

use super::Drops;
use super::change::StockCondition;
use crate::DropId;
use crate::error::Error;
use crate::model::{DropAction, DropRecord, EndReason, WhenSoldOut};
use crate::store;

impl Drops {
    /// Opens the scheduled drops whose opening time has come. Returns how many. Any number of processes may do this at once.
    ///
    /// A drop that cannot be opened does not delay the others. Its error is logged. The first error is returned at the end.
    pub async fn open_due(&self) -> Result<usize, Error> {
        let mut changes = DueChanges::new("open");
        for id in store::due_to_open(&self.db).await? {
            changes.record(id, self.open(id).await);
        }
        changes.result()
    }

    /// Closes the open drops whose closing time has come, and the sold-out ones that are to close. Returns how many. Like
    /// [`open_due`](Self::open_due), it continues after a failing drop.
    pub async fn close_due(&self) -> Result<usize, Error> {
        let mut changes = DueChanges::new("close");
        for id in store::due_to_close(&self.db).await? {
            changes.record(id, self.end(id, EndReason::Closed, StockCondition::Any).await);
        }
        for id in store::sold_out(&self.db).await? {
            changes.record(id, self.close_sold_out(id).await);
        }
        changes.result()
    }

    async fn close_sold_out(&self, id: DropId) -> Result<DropRecord, Error> {
        let drop = self.get(id).await?;
        let (state, action) = (drop.state, DropAction::Close);
        match drop.terms.when_sold_out {
            WhenSoldOut::StayOpen => Err(Error::WrongState { state, action }),
            WhenSoldOut::Close => self.end(id, EndReason::SoldOut, StockCondition::AllSold).await,
        }
    }
}

/// Collects the results of due changes of several drops.
struct DueChanges {
    step: &'static str,
    done: usize,
    failed: Option<Error>,
}

impl DueChanges {
    const fn new(step: &'static str) -> Self {
        Self { step, done: 0, failed: None }
    }

    fn record(&mut self, drop: DropId, changed: Result<DropRecord, Error>) {
        match changed {
            Ok(_) => self.done += 1,
            // Another process was faster, or the drop is no longer due.
            Err(Error::WrongState { .. } | Error::NoSuchDrop(_)) => {}
            Err(error) => {
                let (step, cause) = (self.step, base::error::chain(&error));
                if error.is_transient() {
                    tracing::warn!(outage = step, %drop, step, cause, "a due drop could not be opened or closed; the next tick tries again");
                } else {
                    tracing::error!(%drop, step, cause, "a due drop could not be opened or closed; the next tick tries again");
                }
                self.failed.get_or_insert(error);
            }
        }
    }

    fn result(self) -> Result<usize, Error> {
        self.failed.map_or(Ok(self.done), Err)
    }
}

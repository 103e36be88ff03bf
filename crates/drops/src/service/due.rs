//! Opening and closing drops when their time has come.

use base::error::Coded;

use super::Drops;
use super::change::Condition;
use crate::DropId;
use crate::error::Error;
use crate::model::{Change, DropRecord, EndReason, WhenSoldOut};
use crate::store;

impl Drops {
    /// Opens the scheduled drops whose time has come. Returns how many. Any number of processes may do it at once.
    ///
    /// A drop that cannot be opened does not hold up the others. Its error is logged, and the first one is returned at the end.
    pub async fn open_due(&self) -> Result<usize, Error> {
        let mut changes = Changes::new("open");
        for id in store::due_to_open(&self.db).await? {
            changes.note(id, self.open(id).await);
        }
        changes.result()
    }

    /// Closes the open drops whose time has come, and those that are sold out and close then. Returns how many. As
    /// [`open_due`](Self::open_due), it goes on after a drop that fails.
    pub async fn close_due(&self) -> Result<usize, Error> {
        let mut changes = Changes::new("close");
        for id in store::due_to_close(&self.db).await? {
            changes.note(id, self.end(id, EndReason::Closed, Condition::Anything).await);
        }
        for id in store::sold_out(&self.db).await? {
            changes.note(id, self.close_sold_out(id).await);
        }
        changes.result()
    }

    async fn close_sold_out(&self, id: DropId) -> Result<DropRecord, Error> {
        let drop = self.get(id).await?;
        let (state, change) = (drop.state, Change::Close);
        match drop.terms.when_sold_out {
            WhenSoldOut::StayOpen => Err(Error::WrongState { state, change }),
            WhenSoldOut::Close => self.end(id, EndReason::SoldOut, Condition::AllSold).await,
        }
    }
}

/// Due changes of several drops, of which one may fail.
struct Changes {
    step: &'static str,
    done: usize,
    failed: Option<Error>,
}

impl Changes {
    const fn new(step: &'static str) -> Self {
        Self { step, done: 0, failed: None }
    }

    fn note(&mut self, drop: DropId, changed: Result<DropRecord, Error>) {
        match changed {
            Ok(_) => self.done += 1,
            // Another process was faster, or it is not due any more.
            Err(Error::WrongState { .. } | Error::NoSuchDrop(_)) => {}
            Err(error) => {
                let (step, cause) = (self.step, base::error::chain(&error));
                if error.is_passing() {
                    tracing::warn!(outage = step, %drop, step, cause, "a drop that is due cannot be changed");
                } else {
                    tracing::error!(%drop, step, cause, "a drop that is due cannot be changed");
                }
                self.failed.get_or_insert(error);
            }
        }
    }

    fn result(self) -> Result<usize, Error> {
        self.failed.map_or(Ok(self.done), Err)
    }
}

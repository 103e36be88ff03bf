//! The end of a drop for those who still wait.

use base::id::Uuid;
use runtime::fault;

use super::cycle::all_changed;
use super::{Room, Rows};
use crate::DropId;
use crate::error::Error;
use crate::event;
use crate::store::{self, Locked};

/// How many players one transaction notifies: few enough that it holds the head for some milliseconds only, and that its message to the
/// server is small.
const TOGETHER: u32 = 500;
/// How many transactions a call makes for one drop at most, so that the cycles of other drops do not wait for the end of a long line.
const MOST_BATCHES: usize = 20;

impl Room {
    /// Ends the waiting of everybody whose drop is over, each with an event, and removes the lines of these drops. Returns how many.
    ///
    /// It works in batches, each one transaction of entries and events, and leaves the rest of a long line to the next call. What a killed process has left, the next call goes on with, in whichever
    /// process. A drop that fails does not hold up the others; the first error is returned at the end.
    pub async fn end_waiting(&self) -> Result<usize, Error> {
        let (mut ended, mut failed) = (0, None);
        for drop in store::with_players_waiting_at_the_end(&self.rows.drops.db).await? {
            match self.rows.end_all_waiting(drop).await {
                Ok(count) => ended += count,
                Err(error) => {
                    self.rows.failed("end", drop, &error);
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(ended), Err)
    }
}

impl Rows {
    async fn end_all_waiting(&self, drop: DropId) -> Result<usize, Error> {
        let mut ended = 0;
        for _ in 0..MOST_BATCHES {
            let count = db::retrying(Error::is_conflict, || self.end_some_waiting(drop)).await?;
            ended += count;
            fault::point("drops.end.committed");
            if count < TOGETHER as usize {
                self.remove_line(drop).await;
                break;
            }
        }
        Ok(ended)
    }

    async fn end_some_waiting(&self, id: DropId) -> Result<usize, Error> {
        let db = &self.drops.db;
        let mut tx = db.begin().await?;
        let reading = async {
            let Locked { drop, .. } = store::lock(db, &mut tx, id).await?.ok_or(Error::NoSuchDrop(id))?;
            let now = store::now(&mut tx).await?;
            Ok::<_, Error>((drop, now, store::first_waiting(db, &mut tx, id, TOGETHER).await?))
        };
        let (drop, now, waiting) = db.bounded(reading).await?;
        let Some(last) = waiting.last().filter(|_| drop.state.is_final()) else { return Ok(0) };
        let changed = db.bounded(store::end_waiting(&mut tx, id, last.spot(), now)).await?;
        all_changed(changed, waiting.len())?;
        let at = self.drops.clock.now();
        let events =
            waiting.iter().map(|entry| event::of_wait(&drop, entry, at)).collect::<Result<Vec<_>, _>>()?;
        self.drops.outbox.append_batch(&mut tx, Uuid::now_v7(), &events);
        fault::point("drops.end.uncommitted");
        tx.commit().await?;
        self.metrics.wait_ended(waiting.len());
        Ok(waiting.len())
    }

    /// Removes the line of a drop that is over. The reconciler tries again what fails.
    async fn remove_line(&self, drop: DropId) {
        if let Err(error) = super::within(self.line.clear(drop)).await {
            self.line_failed("clear", drop, &error);
        }
    }
}

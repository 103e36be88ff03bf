//! Notifies players who still wait when a drop ends.

use base::id::Uuid;
use runtime::fault;

use super::cycle::check_row_count;
use super::{Room, RoomInner};
use crate::DropId;
use crate::error::Error;
use crate::event;
use crate::store::{self, LockedDrop};

/// How many players one transaction notifies: few enough to hold the head for a few milliseconds and to keep the packet to the server
/// small.
const BATCH: u32 = 500;
/// How many transactions one call runs per drop at most, so that a long line does not delay the other drops.
const MAX_BATCHES: usize = 20;

impl Room {
    /// Ends the wait of all players whose drop has ended, each with an event, and removes the lines of these drops. Returns how many
    /// players.
    ///
    /// It works in batches, each one transaction of entries and events. The rest of a long line is left to the next call, which may run in
    /// any process and also continues after a crash. A failing drop does not delay the others; the first error is returned at the end.
    pub async fn end_waiting(&self) -> Result<usize, Error> {
        let (mut ended, mut failed) = (0, None);
        for drop in store::ended_with_players_waiting(&self.inner.drops.db).await? {
            match self.inner.end_all_waiting(drop).await {
                Ok(count) => ended += count,
                Err(error) => {
                    self.inner.failed("end", drop, &error);
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(ended), Err)
    }
}

impl RoomInner {
    async fn end_all_waiting(&self, drop: DropId) -> Result<usize, Error> {
        let mut ended = 0;
        for _ in 0..MAX_BATCHES {
            let count = db::retry_conflicts(Error::is_conflict, || self.end_waiting_batch(drop)).await?;
            ended += count;
            fault::point("drops.end.committed");
            if count < BATCH as usize {
                self.remove_line(drop).await;
                break;
            }
        }
        Ok(ended)
    }

    async fn end_waiting_batch(&self, id: DropId) -> Result<usize, Error> {
        let db = &self.drops.db;
        let mut tx = db.begin().await?;
        let reading = async {
            let LockedDrop { drop, .. } = store::lock(db, &mut tx, id).await?.ok_or(Error::NoSuchDrop(id))?;
            let now = store::now(&mut tx).await?;
            Ok::<_, Error>((drop, now, store::first_waiting(db, &mut tx, id, BATCH).await?))
        };
        let (drop, now, waiting) = db.bounded(reading).await?;
        let Some(last) = waiting.last().filter(|_| drop.state.is_final()) else { return Ok(0) };
        let changed = db.bounded(store::end_waiting(&mut tx, id, last.line_member(), now)).await?;
        check_row_count(changed, waiting.len())?;
        let at = self.drops.clock.now();
        let events = waiting
            .iter()
            .map(|entry| event::wait_ended_event(&drop, entry, at))
            .collect::<Result<Vec<_>, _>>()?;
        self.drops.outbox.append_batch(&mut tx, Uuid::now_v7(), &events);
        fault::point("drops.end.uncommitted");
        tx.commit().await?;
        self.metrics.wait_ended(waiting.len());
        Ok(waiting.len())
    }

    /// Removes the line of a drop that has ended. If that fails, the reconciler tries again.
    async fn remove_line(&self, drop: DropId) {
        if let Err(error) = super::with_line_timeout(self.line.clear(drop)).await {
            self.line_failed("clear", drop, &error);
        }
    }
}

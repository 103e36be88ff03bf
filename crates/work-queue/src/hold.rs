//! Holding items, and resuming them.

use std::time::Duration;

use base::id::Uuid;
use db::Error;

use crate::item::{HELD, OPEN};
use crate::statement::ItemRefs;
use crate::{DecisionError, Unordered};

impl Unordered {
    /// Stops an item that is pending or in flight until it is [resumed](Self::resume). A worker that has claimed it loses it: what the
    /// worker [saves](crate::WorkQueue::save) or finishes afterwards changes nothing. A held item has no retention limit.
    pub async fn hold(&self, id: Uuid) -> Result<Result<(), DecisionError>, Error> {
        self.change(id, |state| if state == OPEN { Ok(HELD) } else { Err(DecisionError::Finished) }).await
    }

    /// Reopens a held item with its saved progress and all its attempts.
    pub async fn resume(&self, id: Uuid) -> Result<Result<(), DecisionError>, Error> {
        self.change(id, |state| if state == HELD { Ok(OPEN) } else { Err(DecisionError::NotHeld) }).await
    }

    async fn change(
        &self,
        id: Uuid,
        next: impl Fn(i32) -> Result<i32, DecisionError>,
    ) -> Result<Result<(), DecisionError>, Error> {
        // A worker that claims or saves the item at the same time can cause a deadlock.
        db::retry_conflicts(Error::is_conflict, || self.db.bounded(self.try_change(id, &next))).await
    }

    async fn try_change(
        &self,
        id: Uuid,
        next: impl Fn(i32) -> Result<i32, DecisionError>,
    ) -> Result<Result<(), DecisionError>, Error> {
        let mut tx = self.db.begin().await?;
        let Some(item) = self.lock(&mut tx, ItemRefs::Ids(&[id])).await? else {
            return Ok(Err(DecisionError::Unknown));
        };
        let next = match next(item.state) {
            Ok(next) => next,
            Err(error) => return Ok(Err(error)),
        };
        let changed = self.set_state(&mut tx, Some(item), next, Duration::ZERO).await?;
        tx.commit().await?;
        Ok(changed)
    }
}

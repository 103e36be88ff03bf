//! Stopping items, and resuming them.

use std::time::Duration;

use base::id::Uuid;
use db::Error;

use crate::item::{HELD, OPEN};
use crate::statement::Names;
use crate::{Unfit, Unordered};

impl Unordered {
    /// Stops an item that is pending or in flight, until it is [resumed](Self::resume). A worker that has it loses it: what it
    /// [saves](crate::Queue::save) or finishes afterwards changes nothing. Nobody removes it meanwhile, however long that is.
    pub async fn hold(&self, id: Uuid) -> Result<Result<(), Unfit>, Error> {
        self.change(id, |state| if state == OPEN { Ok(HELD) } else { Err(Unfit::Finished) }).await
    }

    /// Has an item that was stopped done from where it was, with all attempts.
    pub async fn resume(&self, id: Uuid) -> Result<Result<(), Unfit>, Error> {
        self.change(id, |state| if state == HELD { Ok(OPEN) } else { Err(Unfit::NotHeld) }).await
    }

    async fn change(
        &self,
        id: Uuid,
        next: impl Fn(i32) -> Result<i32, Unfit>,
    ) -> Result<Result<(), Unfit>, Error> {
        // A worker that claims or saves the item at this moment may be the other side of a deadlock.
        db::retrying(Error::is_conflict, || self.db.bounded(self.try_change(id, &next))).await
    }

    async fn try_change(
        &self,
        id: Uuid,
        next: impl Fn(i32) -> Result<i32, Unfit>,
    ) -> Result<Result<(), Unfit>, Error> {
        let mut tx = self.db.begin().await?;
        let Some(item) = self.lock(&mut tx, Names::Ids(&[id])).await? else {
            return Ok(Err(Unfit::Unknown));
        };
        let next = match next(item.state) {
            Ok(next) => next,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let changed = self.set(&mut tx, Some(item), next, Duration::ZERO).await?;
        tx.commit().await?;
        Ok(changed)
    }
}

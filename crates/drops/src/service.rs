//! The use cases of drops: creating, opening, changing and ending them.

mod change;
mod create;
mod due;

use base::Clock;
use db::Db;
use outbox::Outbox;

use crate::DropId;
use crate::error::Error;
use crate::model::{DropRecord, DropState};
use crate::store;

pub use self::change::{EndMode, PaceChange};
pub use create::{CreatedDrop, NewDrop};

/// How many drops one page lists at most.
pub const MAX_LIST: u32 = 1_000;

/// The drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Drops {
    pub(crate) db: Db,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
}

/// Which drops to list.
#[derive(Clone, Copy, Debug)]
pub struct ListDrops {
    pub state: Option<DropState>,
    pub after: Option<DropId>,
    pub limit: u32,
}

impl Drops {
    pub fn new(db: Db, outbox: Outbox, clock: Clock) -> Self {
        Self { db, outbox, clock }
    }

    pub async fn get(&self, id: DropId) -> Result<DropRecord, Error> {
        self.find(id).await?.ok_or(Error::NoSuchDrop(id))
    }

    async fn find(&self, id: DropId) -> Result<Option<DropRecord>, Error> {
        let reading = async { store::get(&self.db, &mut self.db.connection().await?, id).await };
        Ok(self.db.bounded(reading).await?)
    }

    /// Lists drops in the order of their creation.
    pub async fn list(&self, which: ListDrops) -> Result<Vec<DropRecord>, Error> {
        let ListDrops { state, after, limit } = which;
        let limit = limit.clamp(1, base::page::rows_to_read(MAX_LIST));
        let reading =
            async { store::list(&self.db, &mut self.db.connection().await?, state, after, limit).await };
        Ok(self.db.bounded(reading).await?)
    }
}

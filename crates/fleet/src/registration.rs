//! The row of this process: inserted at the start, renewed by heartbeats, removed at the stop.

use std::sync::Arc;
use std::time::Duration;

use base::error::chain;
use db::{Db, Dialect, Error};
use runtime::Drain;
use runtime::lifecycle::LoopError;
use tokio::time::Instant;

use crate::store::{self, Row};

/// How long the row of a process that is gone is kept.
const GONE_RETENTION: Duration = Duration::from_secs(3600);

/// The row of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Registration(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    row: Row,
    started: Instant,
}

impl Registration {
    pub(crate) fn new(db: Db, row: Row) -> Self {
        Self(Arc::new(Inner { db, row, started: Instant::now() }))
    }

    /// Renews the row, and removes the rows of processes that have been gone for an hour.
    pub async fn tick(&self) -> Result<(), Error> {
        let Inner { db, row, started } = &*self.0;
        store::renew(db, row, started.elapsed()).await?;
        match db.dialect() {
            Dialect::Sqlite => store::remove_others(db, row.id).await,
            Dialect::MySql => store::remove_silent(db, row.id, GONE_RETENTION).await,
        }
    }

    /// Sends heartbeats until the process stops, then removes the row.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.tick().await?;
            if !drain.sleep(self.0.row.heartbeat).await {
                break;
            }
        }
        if let Err(error) = store::remove(&self.0.db, self.0.row.id).await {
            tracing::warn!(
                cause = chain(&error),
                "cannot remove the row of this process; it is shown as gone although it stopped cleanly"
            );
        }
        Ok(())
    }
}

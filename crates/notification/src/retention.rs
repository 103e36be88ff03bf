//! Removes old rows and counts the dead letters.

use std::time::Duration;

use runtime::lifecycle::{Drain, LoopError};

use crate::{Error, Notifications, store};

/// How often the tables are checked.
const INTERVAL: Duration = Duration::from_secs(10);
/// Pause between two removals while there is more to remove, so that other transactions get through.
const PAUSE: Duration = Duration::from_millis(20);

impl Notifications {
    /// Removes some of the notifications, event ids and dead letters whose retention is over. Returns how many.
    pub async fn remove_old(&self) -> Result<u64, Error> {
        let db = &self.0.db;
        let notifications = store::remove_old(db).await?;
        let events = store::remove_event_ids(db, self.0.config.dedupe_retention).await?;
        let dead_letters = self.expire_dead_letters().await?;
        for (what, count) in [("notification", notifications), ("event", events), ("letter", dead_letters)] {
            self.0.metrics.removed(what, count);
        }
        Ok(notifications + events + dead_letters)
    }

    /// Removes old rows a few at a time and counts the dead letters, until `drain` is requested.
    pub async fn run_retention(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.remove_old().await? > 0 {
                if !drain.sleep(PAUSE).await {
                    return Ok(());
                }
            }
            for (kind, count) in self.count_dead_letters().await? {
                self.0.metrics.dead_letters(kind, count);
            }
            if !drain.sleep(INTERVAL).await {
                return Ok(());
            }
        }
    }
}

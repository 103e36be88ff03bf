//! Keeping the tables small, the dead letters counted, and the streams up to date.

use std::time::Duration;

use live::{Live, Player};
use runtime::lifecycle::{Drain, LoopError};

use crate::metrics::Metrics;
use crate::{Error, Inbox, Notifications, store};

/// Between two looks at the tables.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two removals, while there is more.
const BREATH: Duration = Duration::from_millis(20);
/// How many players' positions one query compares.
const COMPARED: usize = 1_000;

impl Notifications {
    /// Removes some of what is no longer kept, and says how much.
    pub async fn remove_old(&self) -> Result<u64, Error> {
        let db = &self.0.db;
        let notifications = store::remove_old(db).await?;
        let events = store::forget_events(db, self.0.config.dedupe_retention).await?;
        let letters = self.expire_letters().await?;
        for (what, count) in [("notification", notifications), ("event", events), ("letter", letters)] {
            self.0.metrics.removed(what, count);
        }
        Ok(notifications + events + letters)
    }

    /// Removes what is no longer kept, a little at a time, and counts the dead letters, until told to stop.
    pub async fn keep(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            while self.remove_old().await? > 0 {
                if !drain.sleep(BREATH).await {
                    return Ok(());
                }
            }
            for (kind, count) in self.count_letters().await? {
                self.0.metrics.letters(kind, count);
            }
            if !drain.sleep(INTERVAL).await {
                return Ok(());
            }
        }
    }
}

/// Compares what the streams of this process know with their inboxes, in case a live message was lost or never published.
#[derive(Clone, Debug)]
pub struct Watch {
    live: Live,
    inbox: Inbox,
    every: Duration,
    metrics: Metrics,
}

impl Watch {
    pub fn new(live: Live, inbox: Inbox, every: Duration, metrics: Metrics) -> Self {
        Self { live, inbox, every, metrics }
    }

    /// Makes streams that are behind their inbox read it. Returns how many players they belong to.
    pub async fn tick(&self) -> Result<usize, Error> {
        let mut behind = 0;
        for some in self.live.positions::<Player>().chunks(COMPARED) {
            let users: Vec<_> = some.iter().map(|(player, _)| player.0).collect();
            let heads = self.inbox.heads(&users).await?;
            for (player, position) in some {
                if heads.get(&player.0).is_some_and(|head| head.version() > *position) {
                    self.live.gap(player);
                    self.metrics.repaired();
                    behind += 1;
                }
            }
        }
        Ok(behind)
    }

    /// Repeats [`tick`](Self::tick) until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        while drain.sleep(self.every).await {
            self.tick().await?;
        }
        Ok(())
    }
}

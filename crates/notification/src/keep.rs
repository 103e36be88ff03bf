//! Keeping the tables small, the dead letters counted, and the streams up to date.

use std::time::Duration;

use runtime::lifecycle::{Drain, LoopError};

use crate::live::Live;
use crate::metrics::Metrics;
use crate::{Error, Inbox, Notifications, store};

/// Between two looks at the tables.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two removals, while there is more.
const BREATH: Duration = Duration::from_millis(20);
/// How many streams are compared with the inboxes by one question.
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

/// Compares the streams of this process with the inboxes, in case something was told and not heard.
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

    /// Has streams look that are behind their inbox. Says how many players that are.
    pub async fn tick(&self) -> Result<usize, Error> {
        let mut behind = 0;
        for some in self.live.listeners().chunks(COMPARED) {
            let users: Vec<_> = some.iter().map(|(user, _)| *user).collect();
            let heads = self.inbox.heads(&users).await?;
            for (user, position) in some {
                if heads.get(user).is_some_and(|head| head > position) {
                    self.live.missed(*user);
                    self.metrics.repaired();
                    behind += 1;
                }
            }
        }
        Ok(behind)
    }

    /// Does so every now and then, until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        while drain.sleep(self.every).await {
            self.tick().await?;
        }
        Ok(())
    }
}

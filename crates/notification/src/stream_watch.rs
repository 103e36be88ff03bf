//! Finds streams that are behind their inbox.

use std::time::Duration;

use live::{Live, Player};
use runtime::lifecycle::{Drain, LoopError};

use crate::metrics::Metrics;
use crate::{Error, Inbox};

/// How many players' positions one query compares.
const PLAYERS_PER_QUERY: usize = 1_000;

/// Compares the positions of this process's streams with their inboxes, in case a live message was lost or never published.
#[derive(Clone, Debug)]
pub struct StreamWatcher {
    live: Live,
    inbox: Inbox,
    interval: Duration,
    metrics: Metrics,
}

impl StreamWatcher {
    pub fn new(live: Live, inbox: Inbox, interval: Duration, metrics: Metrics) -> Self {
        Self { live, inbox, interval, metrics }
    }

    /// Signals a gap to streams that are behind their inbox, so that they read it. Returns the number of their players.
    pub async fn tick(&self) -> Result<usize, Error> {
        let mut behind = 0;
        for some in self.live.positions::<Player>().chunks(PLAYERS_PER_QUERY) {
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
        while drain.sleep(self.interval).await {
            self.tick().await?;
        }
        Ok(())
    }
}

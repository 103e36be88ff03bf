//! What all players share.

use base::Clock;
use reqwest::Client;
use tokio::time::Instant;

use crate::api::Api;
use crate::scenario::Scenario;
use crate::target::Target;

/// What all players share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) target: Target,
    pub(crate) api: Api,
    /// For streams, which have no deadline.
    pub(crate) streams: Client,
    /// Until when players wait for something to happen.
    pub(crate) players_end: Instant,
    /// Makes the names of this run different from those of others.
    pub(crate) run: String,
    pub(crate) seed: u64,
    pub(crate) clock: Clock,
    /// The drop, if the scenario has one.
    pub(crate) drop_id: Option<String>,
    /// The queue, if players look for matches.
    pub(crate) queue: Option<String>,
}

impl World {
    /// Returns the resource that the drop sells.
    pub(crate) fn resource(&self) -> String {
        format!("sim:{}", self.run)
    }
}

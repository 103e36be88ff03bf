//! What all players share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use base::Clock;
use reqwest::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::{Api, GaveUp};
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
    /// The player of each user, to find two access tokens of one user.
    pub(crate) users: Mutex<HashMap<String, String>>,
    /// The queue, if players look for matches.
    pub(crate) queue: Option<String>,
    /// True once the run is to end.
    pub(crate) stop: watch::Receiver<bool>,
}

impl World {
    /// Runs `work`. Returns none if the run is stopped first.
    pub(crate) async fn until_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut stop = self.stop.clone();
        tokio::select! {
            // Nobody can stop a run whose sender is gone.
            Ok(_) = stop.wait_for(|is_stopped| *is_stopped) => None,
            result = work => Some(result),
        }
    }

    /// Notes whose user this is. Fails if it is that of another player: no check could tell the two apart.
    pub(crate) fn claim_user(&self, user: &str, player: &str) -> Result<(), GaveUp> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        match users.insert(user.to_owned(), player.to_owned()) {
            Some(other) if other != player => {
                Err(GaveUp(format!("its access token and that of {other} belong to the same user, {user}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the resource that the drop sells.
    pub(crate) fn resource(&self) -> String {
        format!("sim:{}", self.run)
    }
}

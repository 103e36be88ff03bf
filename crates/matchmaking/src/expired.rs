//! Removes expired tickets from matchmaking.
//!
//! The data of a ticket expires by itself, its place in matchmaking does not. An engine removes the places of expired
//! tickets that it fetches. Directors fetch no tickets, so in their processes this loop looks for such places.

use std::time::Duration;

use runtime::Drain;
use runtime::lifecycle::LoopError;

use crate::store::Store;

/// The time between two steps.
const INTERVAL: Duration = Duration::from_secs(2);
/// How many tickets a step looks at.
const SAMPLE: usize = 200;

/// Removes expired tickets. Any number may run at once. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct ExpiredTickets {
    store: Store,
}

impl ExpiredTickets {
    pub const fn new(store: Store) -> Self {
        Self { store }
    }

    /// Looks at a random sample of all tickets, and at further ones while many of them have expired. Returns how many were
    /// removed.
    pub async fn tick(&self) -> Result<usize, LoopError> {
        let mut removed = 0;
        loop {
            let expired = self.store.remove_expired(SAMPLE).await?;
            removed += expired;
            if expired <= SAMPLE / 4 {
                return Ok(removed);
            }
        }
    }

    /// Removes tickets until `drain` is requested.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        loop {
            self.tick().await?;
            if !drain.sleep(INTERVAL).await {
                return Ok(());
            }
        }
    }
}

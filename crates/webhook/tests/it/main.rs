//! Destinations that send to real servers.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod delivery;
mod guard;
mod pacing;
mod receiver;
mod verifier;
mod world;

use std::time::Duration;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);

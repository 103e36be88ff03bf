//! Destinations that send requests to real servers.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod delivery;
mod fixture;
mod guard;
mod pacing;
mod receiver;
mod verifier;

use std::time::Duration;

/// Generous, because only a failing test waits that long.
const TIMEOUT: Duration = Duration::from_secs(30);

//! The edge of Open Match's services, by the protocols of its clients.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod backend;
mod backfills;
mod browser;
mod frontend;
mod grpc;
mod health;
mod listener;
mod query;
mod server;

use std::time::Duration;

/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(20);

//! Limits in process and in Redis: one suite over both, and what only Redis can do wrong.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod behaviour;
mod outages;
mod setup;

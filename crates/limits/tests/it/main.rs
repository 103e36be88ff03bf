//! Limits in process and in Redis: one suite for both, and outages of Redis.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod behaviour;
mod outages;
mod setup;

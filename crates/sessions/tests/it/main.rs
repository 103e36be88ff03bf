//! Sessions on real servers.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod store;

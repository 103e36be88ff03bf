//! Sessions on real servers.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod store;

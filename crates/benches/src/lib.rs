//! Benchmarks that run the product as it is shipped: `gateway`, `matchmaking` and `notify`. Here is what they share.
//!
//! `cargo xtask bench NAME` builds the product and runs one. Each starts servers of its own, measures a reference in the same run and
//! reports by [`testkit::bench::Report`].

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has failed")]

mod usage;

use std::path::PathBuf;

pub use usage::Usage;

/// Returns where the product is, once `cargo build --release --package playhouse` has built it.
pub fn product() -> PathBuf {
    testkit::target().join("release").join("playhouse")
}

//! The common part of the benchmarks that run the release build of the product: `console`, `gateway`, `matchmaking`, `notify` and
//! `open-match`.
//!
//! `cargo xtask bench NAME` builds the product and runs one. Each benchmark starts its own servers, measures a reference in the same
//! run and prints a [`testkit::bench::Report`].

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod usage;

use std::path::PathBuf;

pub use usage::Usage;

/// The basic configuration: free ports, and rate limits so high that no address or player is refused.
pub const CONFIG: &str = r#"
[listen]
gateway = "127.0.0.1:0"
service_api = "127.0.0.1:0"
admin = "127.0.0.1:0"
open_match = "127.0.0.1:0"
trusted_proxies = ["127.0.0.1"]
[db]
migrate = true
# OPERATOR_TOKEN, below.
[operators.bench]
token_hash = "cfb9016d96a8fd106b75650df86018ba3697308f4a8fb1d407909f50c59f0b9b"
[telemetry]
log = "warn"
[gateway.limits]
address = "10000/s burst 1000000"
read = "10000/s burst 1000000"
write = "10000/s burst 1000000"
stream = "10000/s burst 1000000"
"#;

/// The operator's token, whose hash is in [`CONFIG`].
pub const OPERATOR_TOKEN: &str = "ph_operator-for-benches-only";

/// Returns the path of the product. `cargo build --release --package playhouse` builds it.
pub fn product() -> PathBuf {
    testkit::target_dir().join("release").join("playhouse")
}

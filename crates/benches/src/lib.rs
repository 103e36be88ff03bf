//! Benchmarks that run the product as it is shipped: `gateway`, `matchmaking` and `notify`. Here is what they share.
//!
//! `cargo xtask bench NAME` builds the product and runs one. Each starts servers of its own, measures a reference in the same run and
//! reports by [`testkit::bench::Report`].

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has failed")]

mod usage;

use std::path::PathBuf;

pub use usage::Usage;

/// The configuration that the benchmarks of the gateway begin with: any ports, and no limit that refuses an address or a player.
pub const CONFIG: &str = r#"
[listen]
gateway = "127.0.0.1:0"
internal = "127.0.0.1:0"
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

/// The token of the operator that the configuration has.
pub const OPERATOR_TOKEN: &str = "ph_operator-for-benches-only";

/// Returns where the product is, once `cargo build --release --package playhouse` has built it.
pub fn product() -> PathBuf {
    testkit::target().join("release").join("playhouse")
}

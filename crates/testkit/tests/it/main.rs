//! Tests of the test kit on real servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too, which clippy cannot see")]
#![expect(clippy::print_stdout, reason = "a child process reports to its test over stdout")]

mod browser;
mod declared_keys;
mod external;
mod leaks;
mod nats;
mod nats_cluster;
mod oidc;
mod pages;
mod program;
mod proxy;
mod redis;
mod roles;
mod skip;
mod sql;
mod template;
mod tls;

use std::time::Duration;

/// Generous, because only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(30);
/// Long enough for a response, if there were one.
const SILENCE: Duration = Duration::from_millis(300);

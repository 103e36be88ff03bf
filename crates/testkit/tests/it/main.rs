//! The test kit on real servers: what it promises to other tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too, which clippy cannot see")]
#![expect(clippy::print_stdout, reason = "how a process in a role talks to the test that started it")]

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

/// Ample: it is used up only by what will never happen.
const DEADLINE: Duration = Duration::from_secs(30);
/// Long enough to be answered in, if anybody were there to answer.
const SILENCE: Duration = Duration::from_millis(300);

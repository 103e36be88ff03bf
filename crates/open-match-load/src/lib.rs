//! A load generator for any Open Match frontend, over plain gRPC (HTTP/2 without TLS).
//!
//! A *player* creates a ticket and watches it until the first assignment arrives. How many players there are, and when they
//! come, is one of:
//!
//! | | |
//! |---|---|
//! | [`open_loop`] | so many per second, whether or not the server keeps up |
//! | [`closed_loop`] | always the same number, each coming back as soon as it has been assigned |
//! | [`idle`] | watchers whose tickets nobody matches |
//! | [`preload`] | tickets that nobody watches |
//!
//! # Invariants
//! - It is cheap, because it shares the machine with what it measures: one thread, requests that are encoded once, no
//!   generated code.
//! - It says when it was itself too slow: see [`Outcome::complaints`].
//! - The clock of a player starts when the player *should* come, before its ticket is created, so a server cannot look better
//!   by holding up the generator.
//! - Whoever is assigned is compared with everybody else: see [`Faults`].
//!
//! Everything here stays on one thread: start it by [`run`].

mod call;
mod checks;
mod frame;
mod histogram;
mod hpack;
mod http2;
mod idle;
mod outcome;
mod pool;
mod run;
mod wire;

pub use call::Failure;
pub use checks::{Checks, Faults};
pub use histogram::Histogram;
pub use idle::{Idle, idle, preload};
pub use outcome::Outcome;
pub use pool::{BadTarget, Target};
pub use run::{Options, closed_loop, open_loop};

/// The connection in a protobuf `Assignment`, as it is kept in Redis.
pub fn connection_of(assignment: bytes::Bytes) -> Option<bytes::Bytes> {
    wire::assignment_connection(&assignment).ok().flatten()
}

/// Runs the generator on this thread until `work` is done.
pub fn run<W: Future>(work: W) -> std::io::Result<W::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, work))
}

//! A load generator for any Open Match frontend, over plain gRPC (HTTP/2 without TLS).
//!
//! A *player* creates a ticket and watches it until the first assignment arrives. The modes of load are:
//!
//! | function | load |
//! |---|---|
//! | [`open_loop`] | a fixed rate of players per second, whether or not the server keeps up |
//! | [`closed_loop`] | a fixed number of players; each starts over once it is assigned |
//! | [`idle`] | watchers of tickets that no engine matches |
//! | [`preload`] | tickets without watchers |
//!
//! # Invariants
//! - The generator is cheap, because it shares the machine with the server: one thread, requests encoded once, no generated
//!   code.
//! - It reports when the generator itself was too slow: see [`LoadReport::warnings`].
//! - A player's latency counts from its *scheduled* start, so a server cannot look better by delaying the generator.
//! - All assignments are compared with each other: see [`Faults`].
//!
//! Everything runs on one thread: call it inside [`run`].

mod call;
mod checks;
mod frame;
mod histogram;
mod hpack;
mod http2;
mod idle;
mod pool;
mod report;
mod run;
mod wire;

pub use call::Failure;
pub use checks::{Checks, Faults};
pub use histogram::Histogram;
pub use idle::{IdleWatchers, idle, preload};
pub use pool::{BadTarget, Target};
pub use report::LoadReport;
pub use run::{Options, closed_loop, open_loop};

/// Returns the connection in a protobuf `Assignment`, the format in which Redis holds it.
pub fn connection_of(assignment: bytes::Bytes) -> Option<bytes::Bytes> {
    wire::assignment_connection(&assignment).ok().flatten()
}

/// Runs `work` to completion on this thread.
pub fn run<W: Future>(work: W) -> std::io::Result<W::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, work))
}

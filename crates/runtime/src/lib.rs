//! The lifecycle of a process (start, readiness, supervision, drain), and its telemetry.
//!
//! A [`Process`] is a list of parts in stages. Stages start in order and stop in reverse. Nothing here knows a store or a
//! service: the program that wires them together adds its parts to the process.

pub mod batch;
pub mod fault;
pub mod lifecycle;
pub mod metrics;
pub mod telemetry;

pub use lifecycle::{Drain, Process, Readiness};
pub use metrics::Metrics;

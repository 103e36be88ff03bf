//! The store of short-lived state: what may be gone tomorrow, and must be fast today.
//!
//! In process (embedded, one process), or Redis (any number of processes), chosen by the scheme of the URL. What is kept here
//! belongs to the services; this crate opens the connection, watches it and judges the server's settings.
//!
//! Failure modes: a store that is away is [`Error::Unreachable`]. The connection comes back by itself; a command that was
//! under way when it was lost fails, and may or may not have been done.

mod config;
mod connect;
mod doctor;
mod error;

pub use self::config::{Config, HotUrl};
pub use connect::{Channels, Hot, Redis};
pub use doctor::examine;
pub use error::Error;

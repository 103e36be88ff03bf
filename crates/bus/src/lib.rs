//! The event bus: what has happened.
//!
//! In process (embedded, one process), or NATS JetStream (any number of processes), chosen by the scheme of the URL. Which
//! events exist belongs to the services; this crate opens the connection, watches it and judges the server's settings.
//!
//! Failure modes: a bus that is away is [`Error::Unreachable`]. The connection comes back by itself, for ever.

mod config;
mod connect;
mod doctor;
mod error;

pub use self::config::{BusUrl, Config};
pub use connect::Bus;
pub use doctor::examine;
pub use error::Error;

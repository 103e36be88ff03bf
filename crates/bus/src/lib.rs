//! The event bus: what has happened.
//!
//! In process (embedded, one process), or NATS JetStream (any number of processes), chosen by the scheme of the URL. Which
//! events exist belongs to the services; this crate publishes them, keeps the stream they go to, watches the connection and
//! judges the server's settings.
//!
//! Events are published as [CloudEvents](https://cloudevents.io) 1.0 in JSON. Publishing is at least once: what fails is
//! published again with the same id, and the stream stores each id once.
//!
//! Failure modes: a bus that is away is [`Error::Unreachable`]. The connection comes back by itself, for ever; a stream that
//! has vanished is made again.

mod config;
mod connect;
mod doctor;
mod error;
mod event;
mod memory;
mod publish;
mod stream;

pub use self::config::{BusUrl, Config};
pub use connect::{Bus, Nats};
pub use doctor::examine;
pub use error::{Cause, Error};
pub use event::{Event, EventId, Json};
pub use memory::{Memory, Stored};
pub use stream::DUPLICATE_WINDOW;

//! The event bus: what has happened.
//!
//! In process (embedded, one process), or NATS JetStream (any number of processes), chosen by the scheme of the URL. Which
//! events exist belongs to the services; this crate publishes them, keeps the stream they go to, delivers them to durable
//! consumers, watches the connection and judges the server's settings.
//!
//! Events are published as [CloudEvents](https://cloudevents.io) 1.0 in JSON. Publishing is at least once: what fails is
//! published again with the same id, and the stream stores each id once.
//!
//! Reading is at least once, too: a [`Consumer`] gets each event again until it is acknowledged or given up, and its progress
//! is kept by its name. What is to be done once is done by the id of the event.
//!
//! Failure modes: a bus that is away is [`Error::Unreachable`], one that answers and takes nothing is [`Error::Refusing`]. Both pass:
//! the event is published again under its id. Only an event that [can never be stored](Error::is_hopeless) is given up. The
//! connection comes back by itself, for ever; a stream or a consumer that has vanished is made again, and the consumer then starts
//! with the first event that is kept.

mod config;
mod connect;
mod consume;
mod doctor;
mod error;
mod event;
mod kind;
mod lookup;
mod memory;
mod publish;
mod publish_state;
mod pull;
mod read;
mod refusal;
mod stream;
mod subscription;

pub use self::config::{BusUrl, Config};
pub use connect::{Bus, Nats};
pub use consume::{Consumer, Delivery, ack_all};
pub use doctor::examine;
pub use error::{Cause, Error};
pub use event::{Event, EventId, Json};
pub use kind::EventKind;
pub use memory::{Memory, Stored};
pub use read::Kept;
pub use refusal::Reason;
pub use stream::DUPLICATE_WINDOW;
pub use subscription::Subscription;

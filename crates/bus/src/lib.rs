//! The event bus: publishes events and delivers them to durable consumers.
//!
//! The bus is embedded (one process) or NATS JetStream (any number of processes); the scheme of the URL selects it. The services define
//! which events exist. This crate publishes them, manages their stream, delivers them to durable consumers, monitors the connection and
//! checks the server's settings.
//!
//! Events are published as [CloudEvents](https://cloudevents.io) 1.0 in JSON. Publishing is at least once: a failed event is published
//! again with the same id, and the stream stores each id once.
//!
//! Delivery is at least once too. A [`Consumer`] receives each event until it is acknowledged or given up, and the bus stores the
//! progress under the consumer's name. A handler that must act once dedupes by the id of the event.
//!
//! Failure modes: an unreachable bus returns [`Error::Unreachable`]; a bus that answers but stores nothing returns [`Error::Refusing`].
//! Both are transient, and the event is published again under its id. Only a [permanent](Error::is_permanent) error fails an event. The
//! client reconnects without a limit. A stream or a consumer that has vanished is created again, and the consumer then starts with the
//! first stored event.

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
pub use memory::{Memory, StoredEvent};
pub use read::StreamEvent;
pub use refusal::Reason;
pub use stream::DUPLICATE_WINDOW;
pub use subscription::Subscription;

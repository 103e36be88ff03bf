//! Matchmaking: an Open Match compatible frontend, and an engine that makes matches.
//!
//! Tickets are kept in a [`Store`]: in process, or in Redis under the keys that minimatch documents. A [`Frontend`] makes, reads,
//! cancels and watches them; [`Players`] does so for one player at a time, by queues. An [`Engine`] fetches them, lets match functions propose matches, and assigns those. A [`Recorder`]
//! records every match in SQL before its players are notified. Any number of each run at once.
//!
//! Invariants, each held by a test that docs/consistency.md names:
//! - no ticket is in two matches, and a ticket is cancelled or assigned, never both
//! - the oldest tickets come first
//! - a player has one ticket, or one in each queue that allows more, and no player reaches another's
//! - every match that players were notified of is recorded, and becomes an event under the match's id
//! - what fails costs nobody a ticket: it goes on waiting
//! - a server that an allocator was asked for is used by its match or given back, never both
//!
//! Failure modes: while the store is away, calls fail with `Unavailable`, engines do nothing. A store that comes
//! back empty is a store without tickets: watchers are told that theirs are gone.

pub mod allocation;
mod config;
pub mod engine;
mod error;
mod event;
mod frontend;
mod metrics;
pub mod model;
mod operator;
mod players;
mod recorder;
mod standing;
pub mod store;
mod wire;
mod wiring;

pub use self::config::Config;
pub use allocation::{ABANDONED, Allocations, MIGRATIONS};
pub use engine::Engine;
pub use error::Error;
pub use event::events;
pub use frontend::{Frontend, FrontendConfig};
pub use metrics::Metrics;
pub use operator::Operator;
pub use players::{
    Join, Joined, PlayerAssignment, PlayerState, PlayerTicket, Players, Present, QUEUE_FIELD, Queue,
    TicketCreated, USER_FIELD,
};
pub use recorder::{Record, Recorder, Recovered};
pub use store::Store;
pub use wiring::Wiring;

//! Matchmaking: a frontend compatible with Open Match, and an engine that makes matches.
//!
//! A [`Store`] keeps the tickets: in process, or in Redis under the keys that minimatch documents. A [`Frontend`]
//! creates, reads, cancels and watches tickets. [`Players`] does the same for signed-in players, by queue, and [`Parties`]
//! for players who queue together. An
//! [`Engine`] fetches tickets, lets match functions propose matches, and assigns them. A [`Recorder`] records every
//! match in SQL before its players are notified. Any number of each may run at the same time.
//!
//! Invariants, each held by a test that docs/explanation/consistency.md names:
//! - no ticket is in two matches, and a ticket is either cancelled or assigned, never both
//! - the oldest tickets are fetched first
//! - a player has one ticket, or one in each queue that allows other queues; no player can reach another player's
//!   ticket
//! - every match whose players were notified is recorded, and is published as an event under the match's id
//! - a failure costs no player a ticket: the ticket keeps waiting
//! - a server requested from an allocator is used by its match or given back, never both
//!
//! Failure modes: while the store is unreachable, calls fail with `Unavailable` and engines do nothing. A store that
//! returns empty has no tickets: watchers learn that their tickets are gone.

mod admin;
pub mod allocation;
mod backend;
mod backfills;
mod config;
mod console;
mod definitions;
pub mod engine;
mod error;
mod event;
mod expired;
mod frontend;
mod metrics;
pub mod model;
mod open_match;
mod parties;
mod players;
mod query;
mod recorder;
mod status;
pub mod store;
pub mod why;
mod wire;
mod wiring;

pub use self::config::Config;
pub use admin::MatchmakingAdmin;
pub use allocation::{ABANDONED, Allocations, MIGRATIONS};
pub use backend::{Backend, BackendConfig, EvaluatorAddress, HostRules, MatchStream};
pub use backfills::{BackfillCleaner, BackfillLimits, Backfills, ProposedBackfill};
pub use console::MatchmakingConsole;
pub use definitions::{
    ActiveDefinitions, Content, Definition, DefinitionKey, DefinitionKind, DefinitionMetrics, Definitions,
};
pub use engine::Engine;
pub use error::Error;
pub use event::events;
pub use expired::ExpiredTickets;
pub use frontend::{Frontend, FrontendConfig};
pub use metrics::Metrics;
pub use open_match::{OpenMatch, OpenMatchService, RestRoute};
pub use parties::{
    Member, MemberFields, Parties, PartyChanged, PartyConfig, PartyTicket, PlayerInvitation, PlayerParties,
    PlayerParty, Refusal,
};
pub use players::{
    EstimateBasis, JoinRequest, JoinedTicket, MEMBERS_FIELD, PlayerAssignment, PlayerReadyCheck, PlayerState,
    PlayerTicket, Players, PresenceGuard, QUEUE_FIELD, Queue, TicketCreated, USER_FIELD, WaitEstimate,
};
pub use query::{Queries, QueryConfig, QueryKind};
pub use recorder::{MatchRecorder, Recorder, RecoveryReport};
pub use store::Store;
pub use wiring::Wiring;

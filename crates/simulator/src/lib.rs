//! `playhouse simulate`: simulates thousands of players against a running instance, and checks everything that they see.
//!
//! # Invariants
//! - **It speaks HTTP only**: the gateway as a player, the admin API as an operator, the payment webhook as a provider. It shares no code
//!   with the services that it checks.
//! - **The checks are pure functions** over a [`History`]: what players saw, and what the instance says afterwards.
//! - **A seed decides what every player does.** When a request is answered is up to the instance, so two runs are alike, not equal.
//! - **It kills only processes that it started.**
//!
//! # Failure modes
//! - The instance cannot be prepared (no drop, no queue): the run fails before a player arrives, with the cause.
//! - A request is refused or unanswered: the player repeats it, as a careful client does. What has no outcome at the end is a violation.
//! - A task of the simulator panics: its player is a violation, with the message.

mod api;
pub mod checks;
mod device;
pub mod history;
mod meter;
mod operator;
mod player;
mod processes;
mod progress;
pub mod report;
mod run;
pub mod scenario;
mod session;
mod target;
mod tasks;
mod world;

pub use api::GaveUp;
pub use checks::{Promise, Violation, check};
pub use history::History;
pub use processes::{ProcessPlan, Processes, this_program};
pub use report::Report;
pub use run::{Options, run};
pub use scenario::Scenario;
pub use target::{Payments, SignIn, Target};

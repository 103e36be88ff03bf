//! An example of a program that makes matches by its own rules, in Rust and in its own process.
//!
//! ```text
//! cargo run -p example-match-function
//! ```
//!
//! You implement three traits, each with one main method:
//!
//! 1. A **match function** ([`SkillTeams`]) gets the tickets of its profile's pools, oldest first, and proposes matches. It can
//!    use a ticket's fields and age. It needs no state: unmatched tickets come again in the next tick.
//! 2. An **evaluator** ([`LongestWaiting`]) decides between proposals that contain the same ticket. The default prefers the
//!    higher score, then the older ticket, so most games need no evaluator.
//! 3. An **assigner** ([`Fleet`]) finds a server for each match. Matches that it omits are not made; their players keep waiting.
//!
//! A **profile** combines pools (made of filters), a match function and an assigner. An engine has any number of profiles.
//!
//! Each plugin has a deadline. If a plugin fails, panics or takes too long, no ticket is lost: its tickets are fetched again in
//! the next tick, and the failure is counted under its profile's name. Long computations belong in
//! `tokio::task::spawn_blocking`, as everywhere in asynchronous code.
//!
//! [`Game`] assembles everything with tickets in memory. To let several processes share the tickets, pass a Redis to
//! `Store::new` instead of `RedisStore::Memory`; nothing else changes.

mod fleet;
mod game;
mod longest_waiting;
mod skill_teams;

pub use fleet::Fleet;
pub use game::Game;
pub use longest_waiting::LongestWaiting;
pub use skill_teams::SkillTeams;

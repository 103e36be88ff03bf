//! How to make matches by rules of your own, in Rust and in your own process.
//!
//! ```text
//! cargo run -p example-match-function
//! ```
//!
//! There are three things to bring, each a trait with one method that matters:
//!
//! 1. A **match function** ([`SkillTeams`]) is given the tickets of its profile's pools, oldest first, and proposes matches. It
//!    may look at a ticket's fields and at how long it has waited. It need not take turns with others, nor remember anything:
//!    tickets that are in no match come again in the next tick.
//! 2. An **evaluator** ([`LongestWaiting`]) chooses where two proposals want the same ticket. There is a default (the higher
//!    score, then the older ticket), so most games need none.
//! 3. An **assigner** ([`Fleet`]) finds a server for each match. What it leaves out is not made; its players go on waiting.
//!
//! A **profile** ties them together: whose tickets (pools, made of filters), which match function, which assigner. An engine
//! has any number of profiles.
//!
//! Each plugin has a deadline. One that fails, panics or takes too long costs nobody a ticket: what it had in hand is fetched
//! again in the next tick, and the failure is counted under its profile's name. Work that keeps a processor busy for long
//! belongs in `tokio::task::spawn_blocking`, as everywhere in asynchronous code.
//!
//! [`Game`] puts it all together over tickets in memory. To let several processes work on the same tickets, give `Store::new`
//! a Redis instead of `RedisStore::Memory`; nothing else changes.

mod fleet;
mod game;
mod longest_waiting;
mod skill_teams;

pub use fleet::Fleet;
pub use game::Game;
pub use longest_waiting::LongestWaiting;
pub use skill_teams::SkillTeams;

//! The screen "Try it" of the console: a developer signs a sample player in and acts for them.
//!
//! A sample player is a user of the builtin issuer, found by the name that they sign in with. The screen links to the actions of other
//! services where these exist (grant, create and open a drop). The routes here do what only a player or a service of yours can do
//! otherwise (sign in, notify, join a queue), and plant a failed event.
//!
//! # Invariants
//! - **Nothing here works outside development.** Every route gets what it acts on from `TryIt::tools`, which refuses unless
//!   `console.try_it` is set. `playhouse dev` sets it.
//! - **The same use cases as in production.** A sign-in, a notification and a ticket are made by the services that make all others.
//! - **No token reaches the browser.** The screen shows the command that prints one.

mod admin;
mod console;
mod events;
mod tools;
mod wiring;

pub use wiring::Wiring;

use tools::TryIt;

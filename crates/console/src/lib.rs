//! The web console for operators: it renders the screens of all services, offers their actions and keeps open screens up to date.
//!
//! # Invariants
//! - **The console has no rights of its own.** A form calls a route of the admin API within the process, as the operator who is signed in.
//!   The guard checks the operator and writes the audit log, as for any other caller.
//! - **Only `markup` writes HTML**, and it escapes every text. No page has inline scripts or styles, and none loads anything from elsewhere.
//! - **A view does not depend on the operator.** All consoles of a process share what was read. Only the offered actions differ.
//! - **Nothing runs without an open console.** The loop of live updates sleeps until a screen is watched.
//!
//! # Failure modes
//! - A service cannot read its screen: the page shows the problem, with its status. Other screens are not affected.
//! - Live updates are lost: the page reconnects and fetches every section that differs.

mod actions;
mod call;
mod chart;
mod config;
mod live;
mod markup;
mod pages;
mod registry;
mod render;
mod sign_in;
mod trace;
mod wiring;

pub use config::Config;
pub use render::standalone_page;
pub use wiring::{Wiring, routes};

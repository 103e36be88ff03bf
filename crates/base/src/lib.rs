//! Foundations that every other crate may use: clock, typed ids, error table, retry policy, room in caches, findings, HTML escaping, counted nouns, pages of lists.
//!
//! Nothing here does I/O, and nothing here knows a store, a protocol or a service.

pub mod backoff;
pub mod cache;
pub mod clock;
pub mod error;
pub mod finding;
pub mod html;
pub mod id;
pub mod page;
mod text;

pub use backoff::Backoff;
pub use clock::{Clock, InvalidTime, Timestamp};
pub use error::Code;
pub use text::counted;

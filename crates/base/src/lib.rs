//! What every other crate may use: the clock, typed ids, the error table, the retry policy, texts made safe for pages.
//!
//! Nothing here does I/O, and nothing here knows a store, a protocol or a service.

pub mod backoff;
pub mod clock;
pub mod error;
pub mod finding;
pub mod html;
pub mod id;

pub use backoff::Backoff;
pub use clock::{Clock, NotATime, Timestamp};
pub use error::Code;

//! The connection to Redis, its configuration and its health.
//!
//! Services keep short-lived state there: sessions, tickets, rate limits. With the URL `memory:` they keep it in process instead, and one process
//! is all there is. What is stored belongs to the services; this crate opens the connection, watches it and judges the server's settings.
//! It is also the one way to name keys ([`KeySpace`]) and to declare and run Lua scripts ([`script!`]).
//!
//! Failure modes: a server that does not answer is [`Error::Unreachable`]. The connection comes back by itself. A command in flight
//! when it was lost fails, and may or may not have been executed.

mod config;
mod connect;
mod doctor;
mod error;
mod fit;
mod key_space;
mod script;

pub use self::config::{Config, RedisUrl};
pub use connect::{Channels, Redis, RedisStore};
pub use doctor::examine;
pub use error::Error;
pub use fit::Trial;
pub use key_space::{HashTags, Key, KeySpace};
pub use script::{Call, Script};

//! The connection to Redis, its configuration and its health.
//!
//! Services keep short-lived state in Redis: sessions, tickets, rate limits. With the URL `memory:` they keep it in the process, which
//! must then be the only one. The services own the stored data. This crate opens the connection, monitors it and checks the server's
//! settings. All keys are named by [`KeySpace`], and all Lua scripts are declared by [`script!`].
//!
//! # Failure modes
//! While the server does not answer, commands fail with [`Error::Unreachable`]. The connection is restored automatically. A command in
//! flight when the connection is lost fails, and may or may not have been executed.

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

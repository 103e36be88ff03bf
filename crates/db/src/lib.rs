//! The SQL store, the source of truth.
//!
//! [`Db`] is SQLite in a file (embedded, one process) or MySQL/MariaDB (any number of processes), selected by the URL scheme. A use
//! case runs in a [`Tx`]. A function that takes `&mut Tx` is part of its caller's transaction.
//!
//! The two dialects share a statement's text where they can ([`on!`]), and have two constants side by side where they cannot. Each
//! service brings its own tables as [`Migrations`].
//!
//! Failure modes: [`Error::Unreachable`] if the store does not answer, [`Error::ReadOnly`] if it takes no writes, [`Error::Busy`] if
//! transactions conflicted. All three can be retried from the beginning. Every other error is a bug or a refusal.

mod cancel_safe;
mod config;
mod connect;
mod corrupt;
mod deployment;
mod doctor;
mod error;
mod fingerprint;
mod health;
mod idempotency;
mod list;
mod lock_queue;
mod mark;
mod metrics;
mod migrate;
mod pooled;
mod retry;
mod row;
mod script;
mod server_support;
mod tx;

use std::pin::Pin;

pub use self::config::{Config, DbUrl};
pub use cancel_safe::CancelSafeConnection;
pub use connect::{Db, Dialect};
pub use doctor::examine;
pub use error::Error;
pub use fingerprint::RequestFingerprint;
pub use idempotency::{IdempotencyKey, InvalidIdempotencyKey, KeyLookup, OtherRequest, RecordedRequest};
pub use list::{ListStatement, list_text};
pub use lock_queue::{QueueReason, QueuedTransaction};
pub use mark::{MarkTable, with_commit_mark};
pub use migrate::{Migration, MigrationStatus, Migrations};
pub use retry::retry_conflicts;
pub use script::Value;
pub use tx::{Conn, InsertText, Raw, Tx};

/// The future that [`Db`] and [`Tx`] return where they call the driver.
///
/// Boxed so that it is compiled once, in this crate. The body of an `async fn` is compiled in each crate that awaits it, together with
/// the driver's pool, handshake and TLS: ten copies, 1.3 MB and half a minute per build.
pub type DbFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The tables that no service owns.
pub const MIGRATIONS: Migrations = Migrations {
    component: "db",
    list: &[
        Migration {
            version: 1,
            name: "deployment_settings",
            sqlite: include_str!("../migrations/sqlite/0001_deployment_settings.sql"),
            mysql: include_str!("../migrations/mysql/0001_deployment_settings.sql"),
        },
        Migration {
            version: 2,
            name: "idempotency_keys",
            sqlite: include_str!("../migrations/sqlite/0002_idempotency_keys.sql"),
            mysql: include_str!("../migrations/mysql/0002_idempotency_keys.sql"),
        },
    ],
};

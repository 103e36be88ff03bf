//! The SQL store: what is true.
//!
//! [`Db`] is SQLite in a file (embedded, one process) or MySQL/MariaDB (any number of processes), chosen by the scheme of
//! the URL. A use case runs in a [`Tx`]; functions that take `&mut Tx` are part of their caller's transaction.
//!
//! The two dialects share the text of a statement where they can ([`on!`]) and have two constants side by side where they
//! cannot. A service brings its own tables as [`Migrations`].
//!
//! Failure modes: a store that is away is [`Error::Unreachable`], one that takes no writes [`Error::ReadOnly`], a transaction that met another one is [`Error::Busy`]; all
//! may be tried again from the beginning. Everything else is a mistake or a refusal.

mod config;
mod connect;
mod corrupt;
mod deployment;
mod doctor;
mod error;
mod fingerprint;
mod fit;
mod health;
mod idempotency;
mod list;
mod mark;
mod metrics;
mod migrate;
mod pooled;
mod retry;
mod row;
mod script;
mod turns;
mod tx;
mod watched;

use std::pin::Pin;

pub use self::config::{Config, DbUrl};
pub use connect::{Db, Dialect};
pub use doctor::examine;
pub use error::Error;
pub use fingerprint::Fingerprint;
pub use idempotency::{BadKey, Earlier, IdempotencyKey, Recorded, RecordedRequest};
pub use list::{ListStatement, list_text};
pub use mark::{MarkTable, marking};
pub use migrate::{Migration, Migrations, Status};
pub use retry::retrying;
pub use script::Value;
pub use tx::{Conn, InsertText, Raw, Tx};
pub use watched::Watched;

/// What [`Db`] and [`Tx`] return where they talk to the driver.
///
/// Boxed so that it is compiled here, once. The body of an `async fn` is compiled in each crate that awaits it, and with it the driver's
/// pool, handshake and TLS: ten copies, 1.3 MB and half a minute of every build.
pub type DbFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The tables that belong to no service.
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

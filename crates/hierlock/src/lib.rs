#![doc = include_str!("../README.md")]

mod bucket_space;
mod error;
mod hot_rows;
mod in_process;
mod lock_manager;
pub mod matrix;
mod metrics;
mod mysql;
mod plan;
mod retry;
mod server_error;
pub mod simulate;
mod target;

pub use bucket_space::BucketSpace;
pub use error::Error;
pub use hot_rows::HotRow;
pub use in_process::{InProcessWait, RowHolders};
pub use lock_manager::{FencingToken, LockGuard, LockManager, Options};
pub use metrics::Metrics;
pub use mysql::{
    LevelStatus, LockWait, ProvisionProgress, ProvisionStatus, Provisioner, SCHEMA, create_tables, examine,
    idle_session_timeout_sql, lock_waits,
};
pub use plan::Row;
pub use retry::Retry;
pub use server_error::ServerError;
/// The driver's connect options, which select the database.
pub use sqlx::mysql::MySqlConnectOptions;
pub use target::{EmptyId, Level, OwnedTarget, Target};

#![doc = include_str!("../README.md")]

mod error;
mod hot;
mod in_process;
mod locks;
pub mod matrix;
mod metrics;
mod mysql;
mod plan;
mod retry;
mod server_error;
pub mod simulate;
mod space;
mod target;

pub use error::Error;
pub use hot::HotRow;
pub use locks::{FencingToken, Lock, Locks, Options};
pub use metrics::Metrics;
pub use mysql::{
    LevelStatus, Progress, Provision, SCHEMA, Status, Wait, create_tables, end_after_silence, examine, waits,
};
pub use plan::Row;
pub use retry::Retry;
pub use server_error::ServerError;
pub use space::Space;
/// Which database, in the driver's terms.
pub use sqlx::mysql::MySqlConnectOptions;
pub use target::{EmptyId, Level, OwnedTarget, Target};

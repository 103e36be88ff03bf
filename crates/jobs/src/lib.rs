//! Jobs: bulk actions of operators that run in the background, step by step.
//!
//! A service declares kinds of jobs (`Service::jobs`), and its routes start them. A job is an item of a [work queue](work_queue),
//! so claims, leases, fencing numbers, retries and retention are those of every other queue. The payload of the item is the job and its
//! progress.
//!
//! # Invariants
//! - **A job survives its process.** Progress and cursor are written after each step. When the lease of a dead process expires, another
//!   one continues with the step after the last one that was recorded.
//! - **Steps are idempotent.** The step in flight at a crash is repeated, so its items are changed once and may be counted twice or not.
//! - **A stopped job starts no further step**, even across restarts, until an operator resumes it. The step in flight ends; its result is
//!   recorded.
//! - **A bulk action changes what the operator saw.** It carries the number of items that the operator saw. It is refused if that number
//!   has changed ([`check_expected`]).

mod admin;
mod console;
mod error;
mod expected;
mod model;
mod runner;
mod service;
mod wiring;

use db::{Migration, Migrations};

pub use self::service::Jobs;
pub use error::Error;
pub use expected::{COUNT_CAP, check_expected};
pub use model::{Failure, JobId, JobView};
pub use wiring::{LOOP, Wiring};

/// The name of the table and of the queue.
pub const TABLE: &str = "jobs";

pub const MIGRATIONS: Migrations = Migrations {
    component: "jobs",
    list: &[Migration {
        version: 1,
        name: "jobs",
        sqlite: work_queue::sqlite_table!("jobs"),
        mysql: work_queue::mysql_table!("jobs"),
    }],
};

//! The running processes with their roles, and findings for operators: `playhouse status`.
//!
//! Every process writes a row with its roles and renews it by a heartbeat, on the database's clock. A clean stop removes the row. A
//! process that misses more than [`MAX_MISSED_HEARTBEATS`] heartbeats is gone. Other processes remove its row after an hour.
//!
//! [`Fleet::status`] combines the processes with the status of each service ([`service::Service::status`]). Every process returns the
//! same status, because all of it is read from the shared stores.
//!
//! Every process also records the figures that services declare ([`service::Service::figures`]) every 10 seconds, for the charts of
//! the console. The oldest process records since when each finding exists.
//!
//! # Failure modes
//! - The database is unreachable: heartbeats fail and the status is unavailable. Processes continue to work, and renew their rows later.
//! - A process hangs without dying: it sends heartbeats while its loops run. Readiness and metrics show the problem.

mod admin;
mod console;
mod doctor;
mod examine;
mod exposition;
mod figures;
mod model;
mod registration;
mod samples;
mod status;
mod store;
mod watch;
mod wiring;

#[cfg(test)]
mod tests;

use db::{Migration, Migrations};

pub use examine::examine;
pub use model::{MAX_MISSED_HEARTBEATS, ProcessState, ProcessView, missing_roles};
pub use registration::Registration;
pub use samples::Sampler;
pub use status::{Fleet, Status};
pub use watch::Watch;
pub use wiring::{Config, Wiring};

pub const MIGRATIONS: Migrations = Migrations {
    component: "fleet",
    list: &[
        Migration {
            version: 1,
            name: "fleet_processes",
            sqlite: include_str!("../migrations/sqlite/0001_fleet_processes.sql"),
            mysql: include_str!("../migrations/mysql/0001_fleet_processes.sql"),
        },
        Migration {
            version: 2,
            name: "fleet_samples",
            sqlite: include_str!("../migrations/sqlite/0002_fleet_samples.sql"),
            mysql: include_str!("../migrations/mysql/0002_fleet_samples.sql"),
        },
        Migration {
            version: 3,
            name: "fleet_findings",
            sqlite: include_str!("../migrations/sqlite/0003_fleet_findings.sql"),
            mysql: include_str!("../migrations/mysql/0003_fleet_findings.sql"),
        },
    ],
};

//! Which processes run, with which roles, and what waits for an operator: `playhouse status`.
//!
//! Every process writes a row with its roles and renews it by a heartbeat, on the database's clock. A clean stop removes the row. A
//! process that misses [`MISSED`] heartbeats is gone; its row is shown for a while and then removed by the others.
//!
//! [`Fleet::status`] puts the processes together with what each service says of itself ([`service::Service::standing`]): the same
//! answer at every process, since everything in it is read from the shared stores.
//!
//! # Failure modes
//! - The database is away: heartbeats fail, and nobody can say who runs. Processes go on working; their rows are renewed when it is back.
//! - A process that hangs without dying sends heartbeats as long as its loops run: readiness and metrics show what it does.

mod examine;
mod model;
mod operator;
mod registration;
mod status;
mod store;
mod wiring;

use db::{Migration, Migrations};

pub use examine::examine;
pub use model::{MISSED, ProcessState, ProcessView, missing_roles};
pub use registration::Registration;
pub use status::{Fleet, Status};
pub use wiring::{Config, Wiring};

pub const MIGRATIONS: Migrations = Migrations {
    component: "fleet",
    list: &[Migration {
        version: 1,
        name: "fleet_processes",
        sqlite: include_str!("../migrations/sqlite/0001_fleet_processes.sql"),
        mysql: include_str!("../migrations/mysql/0001_fleet_processes.sql"),
    }],
};

//! Operators: people with names who run the system, and the log of what they did.
//!
//! # Invariants
//! - **No route of the admin API that reads personal data or changes something answers a stranger.** [`Guard`] builds the router from
//!   the rows of all services, and enforces what each row says.
//! - **No change by an operator is without an entry in the audit log.** The entry is inserted before the change. A change that cannot be
//!   entered is refused.
//! - **An entry without an outcome says "unknown".** A transaction that a change commits marks the entry as committed in the same
//!   transaction, so a process that dies between the commit and the outcome leaves "committed".
//! - **No route changes or removes entries.** A loop removes those that are older than `admin.audit_retention`.
//!
//! # Failure modes
//! Without the database changes are refused with 503, because they could not be entered. Reads go on as far as they need no
//! database. Without the issuer its operators are refused with 503; operators whose tokens are configured are let in.

mod api;
mod audit_log;
mod config;
mod guard;
mod store;
mod wiring;

use db::{Migration, Migrations};

pub use audit_log::{AuditLog, EntryFilter};
pub use config::{Config, ConfiguredOperator};
pub use guard::Guard;
pub use wiring::Wiring;

/// The tables of the audit log.
pub const MIGRATIONS: Migrations = Migrations {
    component: "operators",
    list: &[
        Migration {
            version: 1,
            name: "audit_log",
            sqlite: include_str!("../migrations/sqlite/0001_audit_log.sql"),
            mysql: include_str!("../migrations/mysql/0001_audit_log.sql"),
        },
        Migration {
            version: 2,
            name: "audit_commits",
            sqlite: include_str!("../migrations/sqlite/0002_audit_commits.sql"),
            mysql: include_str!("../migrations/mysql/0002_audit_commits.sql"),
        },
    ],
};

//! Operators, the named people who run the system, and the audit log of their changes.
//!
//! # Invariants
//! - **Routes of the admin API that read personal data or change something require an operator.** [`Guard`] builds the router from the
//!   rows of all services and enforces each row.
//! - **Every change by an operator has an entry in the audit log.** The entry is inserted before the change. If that fails, the change is
//!   refused.
//! - **An entry without an outcome is shown as "unknown".** A change marks its entry as committed in its own transaction, so a process that
//!   dies between the commit and the outcome leaves "committed".
//! - **A session of the console is accepted by the console's pages and by nothing else.** It ends when its operator leaves the
//!   configuration, when the operator signs out, and after `console.session_lifetime`.
//! - **No route changes or removes entries.** A loop removes entries that are older than `admin.audit_retention`.
//!
//! # Failure modes
//! - The database is unreachable: changes get 503, because they cannot be recorded. Reads that need no database still work.
//! - The issuer is unreachable: its operators get 503. Operators with a configured token are not affected.

mod api;
mod audit_log;
mod config;
mod console;
mod guard;
mod sessions;
mod steps;
mod store;
mod wiring;

use db::{Migration, Migrations};

pub use audit_log::{AuditFilter, AuditLog};
pub use config::{Config, ConfiguredOperator};
pub use guard::Guard;
pub use sessions::{COOKIE, ConsoleSessions, NewSession};
pub use wiring::Wiring;

/// The tables of the audit log and of console sessions.
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
        Migration {
            version: 3,
            name: "console_sessions",
            sqlite: include_str!("../migrations/sqlite/0003_console_sessions.sql"),
            mysql: include_str!("../migrations/mysql/0003_console_sessions.sql"),
        },
        Migration {
            version: 4,
            name: "audit_log_by_request",
            sqlite: include_str!("../migrations/sqlite/0004_audit_log_by_request.sql"),
            mysql: include_str!("../migrations/mysql/0004_audit_log_by_request.sql"),
        },
        Migration {
            version: 5,
            name: "audit_log_by_subject",
            sqlite: include_str!("../migrations/sqlite/0005_audit_log_by_subject.sql"),
            mysql: include_str!("../migrations/mysql/0005_audit_log_by_subject.sql"),
        },
    ],
};

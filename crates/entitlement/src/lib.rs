//! Entitlements: the resources that an account owns.
//!
//! A shop, a drop or an operator grants and revokes. [`Entitlements`] stores the current state and publishes changes through the
//! [outbox]. The hierarchy is User → Account → Resource: an entitlement states that an account owns a resource.
//!
//! # Invariants
//! - **One transaction** holds the hierarchical lock on the resource and writes the entitlement with its next version, its history, its
//!   event, and the response under the caller's idempotency key. All of it is committed, or nothing is.
//! - **Once per key.** A repeated request gets the recorded response and changes nothing.
//! - **Changes can join the caller's transaction.** [`Entitlements::apply_in`] applies changes together with the caller's rows: both are
//!   committed, or neither is. The transaction must hold the locks.
//! - **The order of arrival does not matter.** A change carries the time at which it happened at the shop. A change that is older than
//!   the stored state is superseded: it is in the history but has no version and no event. A revoke that arrives before its grant
//!   still wins.
//! - **Versions increase by one**, and so do the events of an entitlement, which are published in that order.
//!
//! # Failure modes
//! A request whose commit is not acknowledged may have been applied. Repeating it under its key is safe and returns the result. If a
//! lock is not acquired in time, the request fails with [`Error::StillRunning`]. If the database is unreachable, it fails with
//! `Unavailable`. In both cases nothing was applied.

mod admin;
mod applier;
mod console;
mod erase;
mod error;
mod event;
mod fingerprint;
mod http;
mod metrics;
mod model;
mod response;
mod service;
mod steps;
mod store;
mod wiring;

use db::{Migration, Migrations};

pub use self::service::{Entitlements, ListOptions, MAX_BATCH, NewRequest};
pub use erase::RevokeOnErase;
pub use error::Error;
pub use event::{EntitlementChanged, events};
pub use http::{Api, routes};
pub use metrics::Metrics;
pub use model::{Action, Change, Effect, Entitlement, Holding, State};
pub use response::{ApplyResponse, ChangeResult, EntitlementView, HistoryEntry};
pub use wiring::{RIGHT, Wiring};

pub const MIGRATIONS: Migrations = Migrations {
    component: "entitlement",
    list: &[
        Migration {
            version: 1,
            name: "entitlements",
            sqlite: include_str!("../migrations/sqlite/0001_entitlements.sql"),
            mysql: include_str!("../migrations/mysql/0001_entitlements.sql"),
        },
        Migration {
            version: 2,
            name: "entitlement_history",
            sqlite: include_str!("../migrations/sqlite/0002_entitlement_history.sql"),
            mysql: include_str!("../migrations/mysql/0002_entitlement_history.sql"),
        },
        Migration {
            version: 3,
            name: "history_by_reference",
            sqlite: include_str!("../migrations/sqlite/0003_history_by_reference.sql"),
            mysql: include_str!("../migrations/mysql/0003_history_by_reference.sql"),
        },
    ],
};

//! What an account owns.
//!
//! A shop (or a drop, or an operator) grants and revokes; [`Entitlements`] keeps what is true, and tells the world through the
//! [outbox]. User → Account → Resource: an entitlement is that an account has a resource.
//!
//! # Invariants
//! - **One transaction**: the hierarchical lock on the resource, the entitlement with its next version, its history, its event,
//!   and the answer under the caller's idempotency key. All of it is true, or nothing is.
//! - **Once per key.** A repeated request gets the first answer and changes nothing.
//! - **In a caller's transaction as in its own.** [`Entitlements::apply_in`] applies changes together with the caller's rows: both are
//!   committed, or neither is. The transaction must hold the locks.
//! - **The order of arrival does not matter.** A change carries the time at which it happened at the shop. What is older than what is
//!   known is superseded: it is in the history, has no version and no event. What was revoked before its grant arrived stays
//!   revoked.
//! - **Versions count up by one**, and so do the events of an entitlement, which are published in that order.
//!
//! # Failure modes
//! A request whose commit is not acknowledged may have been done. To send it again under its key is safe, and tells. A lock that is
//! not had in time is [`Error::StillRunning`]; a store that is away is `Unavailable`: nothing was done.

mod answer;
mod erase;
mod error;
mod event;
mod fingerprint;
mod http;
mod ledger;
mod metrics;
mod model;
mod operator;
mod service;
mod store;
mod wiring;

use db::{Migration, Migrations};

pub use self::service::{Entitlements, ListOptions, MAX_BATCH, NewRequest};
pub use answer::{Answer, Applied, EntitlementView, HistoryEntry};
pub use erase::RevokeOnErase;
pub use error::Error;
pub use event::{EntitlementChanged, events};
pub use http::{Api, routes};
pub use metrics::Metrics;
pub use model::{Action, Change, Effect, Entitlement, Holding, State};
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

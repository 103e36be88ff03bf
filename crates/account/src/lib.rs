//! Users, their identities, roles and accounts.
//!
//! A user signs in with an identity: the pair of an issuer and its subject. [`Accounts::sign_in`] finds the user of an identity. The
//! first sign-in creates the user together with a default account. More identities can be linked to the user. Entitlements belong to
//! the user's accounts.
//!
//! # States of a user
//! | state | reached by | sign-in |
//! |---|---|---|
//! | ACTIVE | the first sign-in; `unban` | yes |
//! | BANNED | `ban` | refused, with the reason |
//! | ERASED | `erase`, from ACTIVE or BANNED; permanent | the identity is free, and its next sign-in creates a new user |
//!
//! # Invariants
//! - **An identity has one user.** The unique key of the table enforces it. Any number of concurrent first sign-ins of one identity, in
//!   any number of processes, create one user with one default account and one event.
//! - **Events commit with the change that they describe** ([`outbox`]). Events about one user keep their order. They carry ids and
//!   states but no personal data.
//! - **Changes of a user exclude each other.** Linking, unlinking, banning and erasing hold the user's exclusive lock. Creating an
//!   account shares the user with other accounts' work, and excludes those changes.
//! - **Erasure is complete or does not happen.** It covers this crate and every [`OnErase`]. Notes of operators are removed too. The
//!   empty row of the user remains, and so do the audit records, which never contain personal data.
//! - **A ban ends the user's sessions** in its transaction ([`OnSessionsEnd`]). Lifting the ban restores none of them.
//! - **A ban cannot be evaded** by freeing an identity of the banned user: linking and unlinking are refused.
//!
//! # Failure modes
//! - The database is unreachable or silent: every call fails in bounded time with a transient error. Every call is idempotent, so the
//!   caller can retry it.
//! - Transactions conflict: they are retried here, a few times.
//! - The reply to a commit is lost: a retry finds the change applied.

mod admin;
mod console;
mod error;
pub mod event;
pub mod http;
mod model;
mod moderation;
mod retry;
mod service;
mod steps;
mod store;
mod wiring;

use db::{Migration, Migrations};

pub use self::service::Accounts;
pub use error::Error;
pub use event::events;
pub use http::{Api, routes};
pub use model::{
    Account, AccountId, AuditId, AuditRecord, DEFAULT_ACCOUNT, LinkedIdentity, Note, NoteId, Role, SignIn,
    SignInResult, UserId, UserState, UserView,
};
pub use moderation::{OnErase, OnSessionsEnd};
pub use wiring::{RIGHT, Wiring};

/// The tables. Each has the user's id, so that a sharded database can be partitioned by user.
pub const MIGRATIONS: Migrations = Migrations {
    component: "account",
    list: &[
        Migration {
            version: 1,
            name: "users",
            sqlite: include_str!("../migrations/sqlite/0001_users.sql"),
            mysql: include_str!("../migrations/mysql/0001_users.sql"),
        },
        Migration {
            version: 2,
            name: "identities",
            sqlite: include_str!("../migrations/sqlite/0002_identities.sql"),
            mysql: include_str!("../migrations/mysql/0002_identities.sql"),
        },
        Migration {
            version: 3,
            name: "accounts",
            sqlite: include_str!("../migrations/sqlite/0003_accounts.sql"),
            mysql: include_str!("../migrations/mysql/0003_accounts.sql"),
        },
        Migration {
            version: 4,
            name: "user_audit",
            sqlite: include_str!("../migrations/sqlite/0004_user_audit.sql"),
            mysql: include_str!("../migrations/mysql/0004_user_audit.sql"),
        },
        Migration {
            version: 5,
            name: "users_by_name",
            sqlite: include_str!("../migrations/sqlite/0005_users_by_name.sql"),
            mysql: include_str!("../migrations/mysql/0005_users_by_name.sql"),
        },
        Migration {
            version: 6,
            name: "identities_by_subject",
            sqlite: include_str!("../migrations/sqlite/0006_identities_by_subject.sql"),
            mysql: include_str!("../migrations/mysql/0006_identities_by_subject.sql"),
        },
        Migration {
            version: 7,
            name: "accounts_by_id",
            sqlite: include_str!("../migrations/sqlite/0007_accounts_by_id.sql"),
            mysql: include_str!("../migrations/mysql/0007_accounts_by_id.sql"),
        },
        Migration {
            version: 8,
            name: "user_notes",
            sqlite: include_str!("../migrations/sqlite/0008_user_notes.sql"),
            mysql: include_str!("../migrations/mysql/0008_user_notes.sql"),
        },
    ],
};

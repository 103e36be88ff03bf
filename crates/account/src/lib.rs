//! Users, their identities, roles and accounts.
//!
//! Somebody signs in with an identity: what an issuer calls them (issuer, subject). [`Accounts::sign_in`] ties it to a user, who
//! is made at the first time together with a default account. More identities can be linked to the user; what is owned hangs
//! off the user's accounts.
//!
//! # States of a user
//! | state | reached by | sign-in |
//! |---|---|---|
//! | ACTIVE | the first sign-in; `unban` | yes |
//! | BANNED | `ban` | refused, with the reason |
//! | ERASED | `erase`, from either; for good | the identity is free, and makes a new user |
//!
//! # Promises
//! - **An identity has one user.** The key of the table decides, not a read before it: however many first sign-ins of one
//!   identity come at once, in however many processes, there is one user with one default account and one event.
//! - **Events leave with the transaction** that made them true ([`outbox`]); those about one user in their order. They carry ids and
//!   states, nothing personal.
//! - **Nobody else works on a user who is changed.** Linking, unlinking, banning and erasing hold the user's exclusive lock;
//!   making an account shares the user with others, so it excludes those.
//! - **Erasing leaves nothing personal**, here or with any [`OnErase`], or else everything. What stays is the row of the user
//!   without anything in it, and the audit records, which never had anything personal in them.
//! - **A ban ends the user's sessions** in its transaction ([`OnSessionsEnd`]), so that lifting it brings none of them back.
//! - **A ban cannot be got around** by freeing an identity of the banned user: linking and unlinking are refused.
//!
//! # When something fails
//! - The store is away or silent: every call gives up in bounded time and says that it may be tried again. All of them may:
//!   done twice, they have the effect and the event of once.
//! - Transactions that met each other are tried again here, a few times.
//! - The answer to a commit was lost: the next call finds what was done.

mod error;
pub mod event;
pub mod http;
mod model;
mod operator;
mod operators;
mod retry;
mod service;
mod store;
mod wiring;

use db::{Migration, Migrations};

pub use self::service::Accounts;
pub use error::Error;
pub use event::events;
pub use http::{Api, routes};
pub use model::{
    Account, AccountId, AuditId, AuditRecord, DEFAULT_ACCOUNT, LinkedIdentity, Role, SignIn, SignedIn,
    UserId, UserState, UserView,
};
pub use operators::{OnErase, OnSessionsEnd};
pub use wiring::{RIGHT, Wiring};

/// The tables. Each has the user's id, by which a database in several pieces is divided.
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
    ],
};

//! Limited sales: players wait in line, are admitted in order, reserve, pay and own the item.
//!
//! SQL is the source of truth. Redis holds a copy of the line that answers position queries quickly and can be rebuilt at any time
//! (ADR 18).

mod check;
mod config;
mod console;
mod erase;
mod error;
mod event;
mod findings;
mod gauges;
mod http;
pub mod line;
pub mod model;
mod money;
pub mod orders;
mod payment;
mod player_api;
mod problem;
mod provider;
mod room;
mod service;
pub mod stock;
mod store;
pub mod token;
mod token_secrets;
mod verify;
mod wiring;
mod worker;

use base::typed_id;
use db::{Migration, Migrations};

pub use self::config::{Config, PaymentConfig};
pub use console::{DropsConsole, steps};
pub use erase::DropsEraser;
pub use error::Error;
pub use event::{AdmissionChanged, DropChanged, WaitEnded, events};
pub use line::{Line, Position};
pub use money::money;
pub use payment::PaymentWebhooks;
pub use provider::PaymentProvider;
pub use room::{
    Admission, CycleReport, Eligibility, Join, PlayerDrop, PlayerStatus, ReconcileReport, Room, RoomMetrics,
    TickReport, WaitStatus,
};
pub use service::{CreatedDrop, Drops, EndMode, ListDrops, MAX_LIST, NewDrop, PaceChange};
pub use token_secrets::TokenSecrets;
pub use verify::{Deviation, JoinRecord, verify_order};
pub use wiring::{RIGHT, Wiring};

typed_id!(
    /// A drop.
    DropId
);
typed_id!(
    /// The admission of a player to a drop.
    AdmissionId
);
typed_id!(
    /// Units held for a player.
    ReservationId
);
typed_id!(
    /// A player's order.
    OrderId
);

pub const MIGRATIONS: Migrations = Migrations {
    component: "drops",
    list: &[
        Migration {
            version: 1,
            name: "drops",
            sqlite: include_str!("../migrations/sqlite/0001_drops.sql"),
            mysql: include_str!("../migrations/mysql/0001_drops.sql"),
        },
        Migration {
            version: 2,
            name: "drop_heads",
            sqlite: include_str!("../migrations/sqlite/0002_drop_heads.sql"),
            mysql: include_str!("../migrations/mysql/0002_drop_heads.sql"),
        },
        Migration {
            version: 3,
            name: "drop_entries",
            sqlite: include_str!("../migrations/sqlite/0003_drop_entries.sql"),
            mysql: include_str!("../migrations/mysql/0003_drop_entries.sql"),
        },
        Migration {
            version: 4,
            name: "drop_stock",
            sqlite: include_str!("../migrations/sqlite/0004_drop_stock.sql"),
            mysql: include_str!("../migrations/mysql/0004_drop_stock.sql"),
        },
        Migration {
            version: 5,
            name: "drop_reservations",
            sqlite: include_str!("../migrations/sqlite/0005_drop_reservations.sql"),
            mysql: include_str!("../migrations/mysql/0005_drop_reservations.sql"),
        },
        Migration {
            version: 6,
            name: "drop_stock_ledger",
            sqlite: include_str!("../migrations/sqlite/0006_drop_stock_ledger.sql"),
            mysql: include_str!("../migrations/mysql/0006_drop_stock_ledger.sql"),
        },
        Migration {
            version: 7,
            name: "drop_orders",
            sqlite: include_str!("../migrations/sqlite/0007_drop_orders.sql"),
            mysql: include_str!("../migrations/mysql/0007_drop_orders.sql"),
        },
        Migration {
            version: 8,
            name: "drop_payment_webhooks",
            sqlite: include_str!("../migrations/sqlite/0008_drop_payment_webhooks.sql"),
            mysql: include_str!("../migrations/mysql/0008_drop_payment_webhooks.sql"),
        },
        Migration {
            version: 9,
            name: "drop_token_keys",
            sqlite: include_str!("../migrations/sqlite/0009_drop_token_keys.sql"),
            mysql: include_str!("../migrations/mysql/0009_drop_token_keys.sql"),
        },
        Migration {
            version: 10,
            name: "drop_erased_users",
            sqlite: include_str!("../migrations/sqlite/0010_drop_erased_users.sql"),
            mysql: include_str!("../migrations/mysql/0010_drop_erased_users.sql"),
        },
        Migration {
            version: 11,
            name: "drop_surplus_payments",
            sqlite: include_str!("../migrations/sqlite/0011_drop_surplus_payments.sql"),
            mysql: include_str!("../migrations/mysql/0011_drop_surplus_payments.sql"),
        },
        Migration {
            version: 12,
            name: "drop_orders_by_payment",
            sqlite: include_str!("../migrations/sqlite/0012_drop_orders_by_payment.sql"),
            mysql: include_str!("../migrations/mysql/0012_drop_orders_by_payment.sql"),
        },
    ],
};

//! From what has happened to the player's screen.
//!
//! Events come from the bus and become notifications in the inboxes of those whom they concern; services can have something told as
//! well. Each notification is delivered on its channels: to the player's streams, to the log, to webhook destinations.
//!
//! # Invariants
//! - **The inbox is what is true.** A notification exists from the commit that put it there; streams and destinations are told after.
//! - **Once per event.** The id of an event is remembered for longer than what was made of it; an event that comes again makes nothing.
//! - **Positions become visible in their order.** Whoever adds to an inbox holds its head until the commit. So a stream that has told
//!   all up to a position never has to go back.
//! - **A stream goes on where it was**, in whichever process: it reads the inbox behind the position that the client has. A live
//!   message only saves it that read.
//! - **FAILED and its dead letter are one transaction.** Nothing leaves the dead letters but by an operator, or when its time is over.
//!
//! # When something dies
//! - before the commit: the event comes again
//! - after the commit, before the acknowledgement: the event comes again, and is known
//! - after the commit, before the live message: the lease of the delivery ends, and another process publishes it
//! - after the live message: it is published again, and streams know the position already
//! - Redis is away: streams look into the inbox every `gateway.stream_heartbeat`
//! - the database is away: nothing is acknowledged, and comes when it is back

mod broadcast;
mod config;
mod dead;
mod deliver;
mod erase;
mod error;
pub mod http;
mod inbox;
mod intake;
mod keep;
mod metrics;
mod model;
mod operator;
mod rules;
mod send;
mod service;
mod standing;
mod store;
mod template;
mod topics;
mod wiring;

use db::{Migration, Migrations};

pub use self::config::{Config, Language, TemplateConfig, TextConfig};
pub use self::service::{Notifications, Parts};
pub use broadcast::{BROADCAST, Broadcasts, Progress};
pub use dead::{KINDS, Letter, Letters, Replayed};
pub use deliver::{ChannelQueues, Check, Deliveries, LIVE, LOG, WEBHOOK, Webhooks};
pub use erase::EraseInbox;
pub use error::Error;
pub use http::{Api, routes};
pub use inbox::{Inbox, MOST_MARKED, Marked, Page, Rest};
pub use intake::{Intake, Taken};
pub use keep::Watch;
pub use metrics::Metrics;
pub use model::{Channel, Counts, Head, Mark, Notification, NotificationId, Text, Texts};
pub use rules::{Rules, Wrong};
pub use send::{Content, MOST_USERS, Recipients, Request, Sent};
pub use store::Filter;
pub use template::{Fields, TextTemplate};
pub use topics::{CountsChanged, NotificationAdded};
pub use wiring::{RIGHT, Wiring};

/// A migration of which the statements are files.
macro_rules! migration {
    ($version:literal, $name:literal, $file:literal) => {
        Migration {
            version: $version,
            name: $name,
            sqlite: include_str!(concat!("../migrations/sqlite/", $file)),
            mysql: include_str!(concat!("../migrations/mysql/", $file)),
        }
    };
}

/// A migration that makes the table of a queue.
macro_rules! queue {
    ($version:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sqlite: work_queue::sqlite_table!($name),
            mysql: work_queue::mysql_table!($name),
        }
    };
}

pub const MIGRATIONS: Migrations = Migrations {
    component: "notification",
    list: &[
        migration!(1, "notification_event", "0001_notification_event.sql"),
        migration!(2, "notification_head", "0002_notification_head.sql"),
        migration!(3, "notification", "0003_notification.sql"),
        migration!(4, "notification_dlq", "0004_notification_dlq.sql"),
        queue!(5, "notification_live"),
        queue!(6, "notification_log"),
        queue!(7, "notification_webhook"),
        queue!(8, "notification_broadcast"),
        migration!(9, "notification_destination", "0009_notification_destination.sql"),
        migration!(10, "notification_intake", "0010_notification_intake.sql"),
        migration!(11, "notification_live_by_user", "0011_notification_live_by_user.sql"),
        migration!(12, "notification_log_by_user", "0012_notification_log_by_user.sql"),
        migration!(13, "notification_webhook_by_user", "0013_notification_webhook_by_user.sql"),
        migration!(14, "notification_head_marks", "0014_notification_head_marks.sql"),
    ],
};

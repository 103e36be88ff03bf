//! Turns events and requests of services into notifications, and delivers them to players.
//!
//! Events from the bus become notifications in the inboxes of the users they name; services send notifications through the service API.
//! Each notification is delivered on its channels: to the player's streams, to the log, to webhook destinations.
//!
//! # Invariants
//! - **The inbox is the source of truth.** A notification exists from the commit that added it. Streams and destinations receive it after
//!   that commit.
//! - **Once per event.** Event ids are kept for longer than the notifications, so an event that arrives again creates nothing.
//! - **Positions become visible in order.** A transaction that adds to an inbox locks its head until the commit. So a stream that has sent
//!   everything up to a position never has to go back.
//! - **A stream can resume in any process**: it reads the inbox after the client's last position. A live message only saves that read.
//! - **FAILED and its dead letter are one transaction.** A dead letter is removed only by an operator, or after
//!   `notification.dead_retention`.
//!
//! # Failure modes
//! - Crash before the commit: the bus delivers the event again.
//! - Crash after the commit, before the acknowledgement: the bus delivers the event again, and it is a duplicate.
//! - Crash after the commit, before the live message: the lease of the delivery expires, and another process publishes it.
//! - Crash after the live message: it is published again. Streams skip positions that they have sent.
//! - Redis is unreachable: streams read the inbox every `gateway.stream_heartbeat`.
//! - The database is unreachable: nothing is acknowledged, and the bus delivers it again later.

mod admin;
mod broadcast;
mod config;
mod console;
mod dead_letters;
mod deliver;
mod erase;
mod error;
pub mod http;
mod inbox;
mod intake;
mod metrics;
mod model;
mod retention;
mod rules;
mod send;
mod service;
mod status;
mod steps;
mod store;
mod stream_watch;
mod template;
mod topics;
mod wiring;

use db::{Migration, Migrations};

pub use self::config::{Config, Language, TemplateConfig, TextConfig};
pub use self::service::{Notifications, Parts};
pub use broadcast::{BROADCAST, Broadcasts, Progress};
pub use dead_letters::{
    DEAD_LETTER_KINDS, DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetterPage, ReplayReport,
};
pub use deliver::{ChannelQueues, Deliveries, DeliveryCheck, LIVE, LOG, WEBHOOK, Webhooks};
pub use erase::EraseInbox;
pub use error::Error;
pub use http::{Api, routes};
pub use inbox::{Inbox, InboxTail, MAX_MARKED, MarkTarget, Page};
pub use intake::{Intake, IntakeReport};
pub use metrics::Metrics;
pub use model::{Channel, Counts, Head, Mark, Notification, NotificationId, Text, Texts};
pub use rules::{Rules, TemplateError};
pub use send::{Content, MAX_USERS, Recipients, Request, SendReceipt};
pub use store::Filter;
pub use stream_watch::StreamWatcher;
pub use template::{Fields, TextTemplate};
pub use topics::{CountsChanged, NotificationAdded};
pub use wiring::{RIGHT, Wiring};

/// A migration whose statements are files.
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

/// A migration that creates the table of a work queue.
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
        migration!(15, "notification_dlq_by_kind", "0015_notification_dlq_by_kind.sql"),
        migration!(16, "notification_dlq_by_destination", "0016_notification_dlq_by_destination.sql"),
    ],
};

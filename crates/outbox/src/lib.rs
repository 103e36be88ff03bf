//! The outbox: events that leave with the transaction that made them true.
//!
//! [`Outbox::append`] writes an event in the caller's transaction; there is no other way to append. The [`Relay`] takes events from
//! there to the [bus](bus::Bus): any number of relays at once, each event at least once and stored once, those of one key in
//! their order.
//!
//! # States
//! | state | reached by |
//! |---|---|
//! | PENDING | appended; or put back after a failed attempt, with the time of the next one |
//! | IN_FLIGHT | claimed by a relay, until its lease ends |
//! | PUBLISHED | acknowledged by the stream; removed after `outbox.retention` |
//! | FAILED | [hopeless](bus::Error::is_hopeless), or relays died with it too often; waits for an operator, and so does what follows of its key |
//! | SKIPPED | given up by an operator |
//!
//! # When something dies
//! - before the commit: nothing happened
//! - after the commit: any relay publishes the event; one that a relay of the same process was to be handed, when its lease ends
//! - after the claim: the lease ends and another relay claims it
//! - after publishing: it is published again under the same id, and the stream drops it
//! - the bus is away or refuses events for now: no attempt is counted; relays try again every second at least
//!
//! The machinery of claims, leases and attempts is that of [`work_queue`].

mod event;
mod failed;
mod operator;
mod relay;
mod standing;
mod wiring;

use std::collections::HashSet;
use std::sync::Arc;

use base::Clock;
use bus::Event;
use db::{Db, Migration, Migrations, Tx};
use work_queue::{New, Queue};

use self::failed::LogFailed;

pub use base::id::Uuid;
pub use operator::Operator;
pub use relay::Relay;
pub use wiring::{RELAY, Wiring};
pub use work_queue::{Config, Metrics};

/// The table, and the name of the queue.
pub const TABLE: &str = "outbox";

pub const MIGRATIONS: Migrations = Migrations {
    component: "outbox",
    list: &[Migration {
        version: 1,
        name: "outbox",
        sqlite: work_queue::sqlite_table!("outbox"),
        mysql: work_queue::mysql_table!("outbox"),
    }],
};

/// The outbox. Clones are the same.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: Queue,
}

impl Outbox {
    pub fn new(db: Db, config: Config, metrics: Metrics, clock: Clock) -> Self {
        Self { queue: Queue::new(TABLE, db, config, metrics, clock).on_failed(Arc::new(LogFailed)) }
    }

    /// Appends events to the caller's transaction, each with the user whom it is about.
    ///
    /// The events of one key are published in the order in which they were appended, provided that transactions which append to
    /// the same key exclude each other: take the lock on what the key stands for first.
    pub fn append(&self, tx: &mut Tx, events: &[(Uuid, Event)]) {
        self.rows(events, |items| self.queue.push(tx, items));
    }

    /// Appends a row of this id that holds all these events. A relay of this process publishes them right after the commit.
    ///
    /// There is no order between them, nor with other rows: each event must be the only one of its key. The id cannot be appended
    /// twice, so a caller that does not know whether its commit succeeded repeats it under the same id.
    pub fn append_batch(&self, tx: &mut Tx, id: Uuid, events: &[Event]) {
        self.append_raw(tx, id, &event::encode_batch(events));
    }

    /// Appends a row of this id with bytes that hold no event, so that they are kept. The relay marks it FAILED.
    pub fn append_unreadable(&self, tx: &mut Tx, id: Uuid, bytes: &[u8]) {
        // Whatever the bytes are, no event begins like this.
        self.append_raw(tx, id, &[event::UNREADABLE, bytes].concat());
    }

    fn append_raw(&self, tx: &mut Tx, id: Uuid, payload: &[u8]) {
        // Its own key: nothing is before it.
        self.queue.push_next(tx, &[New { id, user: Uuid::nil(), key: &id.to_string(), payload }]);
    }

    /// The events as items.
    fn rows(&self, events: &[(Uuid, Event)], push: impl FnOnce(&[New<'_>])) {
        let rows: Vec<(String, Vec<u8>)> =
            events.iter().map(|(_, event)| (key(event), event::encode(event))).collect();
        let items = events.iter().zip(&rows).map(|((user, event), (key, payload))| New {
            id: *event.id.as_uuid(),
            user: *user,
            key,
            payload,
        });
        push(&items.collect::<Vec<_>>());
    }

    /// The same for events of whose keys nothing is unfinished, as the caller has asked with [`UNFINISHED`](Self::UNFINISHED) under the
    /// lock: a relay of this process publishes them right after the commit.
    pub fn append_next(&self, tx: &mut Tx, events: &[(Uuid, Event)]) {
        self.rows(events, |items| self.queue.push_next(tx, items));
    }

    /// A column for a `SELECT`: how many events of a key are unfinished. It takes the [number of the key](Self::key_number).
    pub const UNFINISHED: &str = work_queue::unfinished_column!("outbox");

    /// Returns those of these [numbers of keys](Self::key_number) of which events are unfinished, in one query of the caller's transaction:
    /// [`UNFINISHED`](Self::UNFINISHED) for many. `keys` is not empty.
    pub async fn unfinished_in(&self, tx: &mut Tx, keys: &[i64]) -> Result<HashSet<i64>, db::Error> {
        self.queue.unfinished_in(tx, keys).await
    }

    /// What stands for a key in statements.
    pub fn key_number(key: &str) -> i64 {
        Queue::key_number(key)
    }

    /// The queue behind it.
    pub const fn queue(&self) -> &Queue {
        &self.queue
    }
}

/// The key of an event's row. An event without a key is in order with itself only.
fn key(event: &Event) -> String {
    event.key.clone().unwrap_or_else(|| event.id.to_string())
}

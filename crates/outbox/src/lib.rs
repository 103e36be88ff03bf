//! The transactional outbox: events are stored in the transaction that causes them, and published after its commit.
//!
//! [`Outbox::append`] writes an event in the caller's transaction; there is no way to append outside of one. The [`Relay`] publishes
//! the events to the [bus](bus::Bus). Any number of relays run concurrently. Each event is published at least once and stored once,
//! and events of one key are published in order.
//!
//! # States
//! | state | reached by |
//! |---|---|
//! | PENDING | appended, or waiting for its next attempt |
//! | IN_FLIGHT | claimed by a relay, until its lease ends |
//! | PUBLISHED | acknowledged by the stream; removed after `outbox.retention` |
//! | FAILED | refused [permanently](bus::Error::is_permanent), or too many relays died with it; it waits for an operator and blocks its key |
//! | SKIPPED | skipped by an operator |
//!
//! # When a process dies
//! - before the commit: nothing happened
//! - after the commit: any relay publishes the event; a locally published event only after its lease expires
//! - after the claim: the lease expires and another relay claims the event
//! - after publishing: the event is published again under the same id, and the stream drops the duplicate
//!
//! While the bus is unreachable or refuses events, no attempt is counted. Relays retry at least every second.
//!
//! [`work_queue`] provides claims, leases and attempts.

mod admin;
mod batches;
mod bulk;
mod console;
mod event;
mod failed;
mod relay;
mod status;
mod steps;
mod wiring;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Timestamp};
use bus::Event;
use db::{Db, Migration, Migrations, Tx};
use work_queue::{ItemView, NewItem, WorkQueue};

use self::failed::LogFailed;

pub use admin::OutboxAdmin;
pub use base::id::Uuid;
pub use relay::Relay;
pub use wiring::{RELAY, Wiring};
pub use work_queue::{Config, Metrics};

/// The name of the table and of the queue.
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

/// The outbox. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: WorkQueue,
    db: Db,
}

impl Outbox {
    pub fn new(db: Db, config: Config, metrics: Metrics, clock: Clock) -> Self {
        let queue = WorkQueue::new(TABLE, db.clone(), config, metrics, clock);
        Self { queue: queue.with_failure_hook(Arc::new(LogFailed)), db }
    }

    /// Appends events to the caller's transaction, each with the user it is about.
    ///
    /// Events of one key are published in the order of their appends, provided that transactions that append to the same key exclude
    /// each other. Take the lock on the entity behind the key first.
    pub fn append(&self, tx: &mut Tx, events: &[(Uuid, Event)]) {
        self.rows(events, |items| self.queue.push(tx, items));
    }

    /// Appends one row with this id that holds all these events. A relay of this process publishes them right after the commit.
    ///
    /// There is no order among them or with other rows, so each event must be the only one of its key. A second append of the id fails
    /// as a duplicate. A caller that does not know whether its commit succeeded can therefore repeat it under the same id.
    pub fn append_batch(&self, tx: &mut Tx, id: Uuid, events: &[Event]) {
        self.append_raw(tx, id, &event::encode_batch(events));
    }

    /// Appends a row with this id for bytes that could not be read as an event, to preserve them. The relay marks the row FAILED.
    pub fn append_unreadable(&self, tx: &mut Tx, id: Uuid, bytes: &[u8]) {
        // No event begins with this marker.
        self.append_raw(tx, id, &[event::UNREADABLE, bytes].concat());
    }

    fn append_raw(&self, tx: &mut Tx, id: Uuid, payload: &[u8]) {
        // The id is the key, so no earlier row can exist.
        self.queue.push_local(tx, &[NewItem { id, user: Uuid::nil(), key: &id.to_string(), payload }]);
    }

    /// Encodes the events as queue items and passes them to `push`.
    fn rows(&self, events: &[(Uuid, Event)], push: impl FnOnce(&[NewItem<'_>])) {
        let rows: Vec<(String, Vec<u8>)> =
            events.iter().map(|(_, event)| (key(event), event::encode(event))).collect();
        let items = events.iter().zip(&rows).map(|((user, event), (key, payload))| NewItem {
            id: *event.id.as_uuid(),
            user: *user,
            key,
            payload,
        });
        push(&items.collect::<Vec<_>>());
    }

    /// Appends events whose keys have nothing unpublished, so that a relay of this process publishes them right after the commit. The
    /// caller must have checked that with [`UNFINISHED`](Self::UNFINISHED) or [`unfinished_in`](Self::unfinished_in), under the lock.
    pub fn append_local(&self, tx: &mut Tx, events: &[(Uuid, Event)]) {
        self.rows(events, |items| self.queue.push_local(tx, items));
    }

    /// A `SELECT` column that counts the unpublished events of a key. It takes one parameter, the [hash of the key](Self::key_hash).
    pub const UNFINISHED: &str = work_queue::unfinished_column!("outbox");

    /// Returns those of these [key hashes](Self::key_hash) that have unpublished events, with one query in the caller's transaction.
    /// `keys` must not be empty.
    pub async fn unfinished_in(&self, tx: &mut Tx, keys: &[i64]) -> Result<HashSet<i64>, db::Error> {
        self.queue.unfinished_in(tx, keys).await
    }

    /// Returns the hash by which statements refer to a key.
    pub fn key_hash(key: &str) -> i64 {
        WorkQueue::key_hash(key)
    }

    /// Returns the event with this id while the outbox keeps it. Does not find events of batch rows: see
    /// [`find_batched_event`](Self::find_batched_event).
    pub async fn find_event(&self, id: Uuid) -> Result<Option<Event>, db::Error> {
        let item = self.queue.find(id).await?;
        Ok(item.and_then(|item| events_of(&item).into_iter().find(|event| *event.id.as_uuid() == id)))
    }

    /// Returns the event with this id, alone or in a batch row, while the outbox keeps it. Finds batched events by the time in their id.
    pub async fn find_batched_event(&self, id: Uuid) -> Result<Option<Event>, db::Error> {
        if let Some(event) = self.find_event(id).await? {
            return Ok(Some(event));
        }
        let item = batches::row_of_event(self, id).await?;
        Ok(item.and_then(|item| events_of(&item).into_iter().find(|event| *event.id.as_uuid() == id)))
    }

    /// Returns the first event of a batch row whose data contains this text, and that was published in this period or is not published yet.
    pub async fn find_batched_text(
        &self,
        text: &str,
        since: Timestamp,
        within: Duration,
    ) -> Result<Option<Event>, db::Error> {
        let item = batches::row_containing(self, text, since, within).await?;
        let contains = |event: &Event| {
            let data = event.data.as_bytes();
            data.windows(text.len().max(1)).any(|window| window == text.as_bytes())
        };
        Ok(item.and_then(|item| events_of(&item).into_iter().find(contains)))
    }

    /// Returns the time by the clock of the database.
    pub(crate) async fn now(&self) -> Result<Timestamp, db::Error> {
        self.db.now().await
    }

    /// Returns the underlying queue.
    pub const fn queue(&self) -> &WorkQueue {
        &self.queue
    }
}

/// Returns the events of a row. None if it cannot be read.
fn events_of(item: &ItemView) -> Vec<Event> {
    event::decode_all(item.id, &item.payload).unwrap_or_default()
}

/// Returns the key of an event's row. An event without a key gets its id, so that no other event shares its order.
fn key(event: &Event) -> String {
    event.key.clone().unwrap_or_else(|| event.id.to_string())
}

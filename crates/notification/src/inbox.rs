//! The inbox of a player.

use std::collections::HashMap;
use std::sync::Arc;

use base::Clock;
use base::id::Uuid;
use db::Db;
use live::{Live, Player};
use runtime::fault;

use crate::model::{Counts, Head, Mark, Notification};
use crate::store::{self, Filter, InboxReader, InboxRows, MarkChange, MarkSelector, Retention};
use crate::topics::CountsChanged;
use crate::{Config, Error, NotificationId};

/// How many notifications one request can mark by their ids.
pub const MAX_MARKED: usize = 1_000;

/// The inboxes of all players. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Inbox {
    db: Db,
    live: Live,
    clock: Clock,
    retention: Retention,
    language: Arc<str>,
}

/// A page of an inbox, newest first.
#[derive(Clone, Debug)]
pub struct Page {
    pub notifications: Vec<Notification>,
    /// The position before which the next page begins, if there is one.
    pub next: Option<i64>,
    pub counts: Counts,
    /// The position of the user's latest notification ever. A stream that starts there misses nothing.
    pub head: i64,
}

/// The notifications after a position.
#[derive(Clone, Debug, Default)]
pub struct InboxTail {
    pub notifications: Vec<Notification>,
    /// Everything up to this position is included or was removed.
    pub up_to: i64,
    /// Whether there are more after it.
    pub has_more: bool,
}

/// Which notifications a player marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkTarget {
    Ids(Vec<NotificationId>),
    /// All up to this position. A notification that arrived after the player's list was read stays unmarked.
    UpTo(i64),
}

impl Inbox {
    pub fn new(db: Db, live: Live, clock: Clock, config: &Config) -> Self {
        let retention = Retention { unread: config.retention, read: config.read_retention };
        Self { db, live, clock, retention, language: config.language.0.as_str().into() }
    }

    /// Returns the default language of texts.
    pub fn language(&self) -> &str {
        &self.language
    }

    /// Reads a page of the inbox before a position.
    pub async fn list(
        &self,
        user: Uuid,
        filter: Filter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Page, Error> {
        let now = self.clock.now();
        let head = self.head(user).await?.position;
        let reading = async {
            let connection = &mut self.db.connection().await?;
            let mut reader = InboxReader { db: &self.db, connection, user, now };
            let found = reader.before(before.unwrap_or(i64::MAX), filter, limit).await?;
            Ok::<_, db::Error>((found, reader.counts().await?))
        };
        let (InboxRows { notifications, last, has_more }, counts) = self.db.bounded(reading).await?;
        let next = last.filter(|_| has_more);
        Ok(Page { notifications, next, counts, head })
    }

    /// Returns a notification. Fails if it has expired.
    pub async fn get(&self, user: Uuid, id: NotificationId) -> Result<Notification, Error> {
        let now = self.clock.now();
        let reading = async {
            let connection = &mut self.db.connection().await?;
            InboxReader { db: &self.db, connection, user, now }.one(*id.as_uuid()).await
        };
        let found = self.db.bounded(reading).await?;
        let found = found.filter(|found| found.expires_at.is_none_or(|end| end > now.as_millis()));
        found.ok_or(Error::NotFound(id))
    }

    pub async fn counts(&self, user: Uuid) -> Result<Counts, Error> {
        let now = self.clock.now();
        let reading = async {
            let connection = &mut self.db.connection().await?;
            InboxReader { db: &self.db, connection, user, now }.counts().await
        };
        Ok(self.db.bounded(reading).await?)
    }

    /// Reads the counts, and a number of marks that they include at least.
    pub async fn counts_and_marks(&self, user: Uuid) -> Result<(Counts, i64), Error> {
        // In this order: a mark between the two reads is in the counts and not in the number, which costs one more read.
        let marks = self.head(user).await?.marks;
        Ok((self.counts(user).await?, marks))
    }

    /// Reads the head of a user's inbox.
    pub async fn head(&self, user: Uuid) -> Result<Head, Error> {
        Ok(self.heads(&[user]).await?.remove(&user).unwrap_or_default())
    }

    /// Reads the heads of several inboxes. Users who never had a notification are left out.
    pub async fn heads(&self, users: &[Uuid]) -> Result<HashMap<Uuid, Head>, Error> {
        Ok(store::heads(&self.db, users).await?)
    }

    /// Reads up to `limit` notifications after a position, in order.
    pub async fn after(&self, user: Uuid, position: i64, limit: u32) -> Result<InboxTail, Error> {
        // The head first: everything up to it is visible when the rows are read.
        let head = self.head(user).await?.position;
        let now = self.clock.now();
        let reading = async {
            let connection = &mut self.db.connection().await?;
            InboxReader { db: &self.db, connection, user, now }.after(position, limit).await
        };
        let InboxRows { notifications, last, has_more } = self.db.bounded(reading).await?;
        let last = last.unwrap_or(position);
        Ok(InboxTail { notifications, up_to: if has_more { last } else { last.max(head) }, has_more })
    }

    /// Marks notifications and publishes the new counts. Skips those that have the mark already or do not exist.
    pub async fn mark(&self, user: Uuid, target: &MarkTarget, mark: Mark) -> Result<Counts, Error> {
        let ids: Vec<Uuid>;
        let selector = match target {
            MarkTarget::UpTo(position) => MarkSelector::UpTo(*position),
            MarkTarget::Ids(given) if given.len() > MAX_MARKED => {
                return Err(Error::TooMany { max: MAX_MARKED });
            }
            MarkTarget::Ids(given) => {
                ids = given.iter().map(|id| *id.as_uuid()).collect();
                MarkSelector::Ids(&ids)
            }
        };
        let change = MarkChange { user, selector, mark, retention: self.retention };
        let changed =
            db::retry_conflicts(db::Error::is_conflict, || self.db.bounded(self.try_mark(change))).await?;
        fault::point("notification.marked");
        let counts = self.counts(user).await?;
        if changed > 0 {
            // For the player's other devices. If this fails, their streams read the counts at the next heartbeat.
            let _ = self.live.publish::<CountsChanged>(Player(user), counts).await;
        }
        Ok(counts)
    }

    async fn try_mark(&self, change: MarkChange<'_>) -> Result<u64, db::Error> {
        let mut tx = self.db.begin().await?;
        let changed = store::mark(&mut tx, change, self.clock.now()).await?;
        tx.commit().await?;
        Ok(changed)
    }
}

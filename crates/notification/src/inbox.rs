//! The inbox: what a player finds, however long they were away.

use std::collections::HashMap;
use std::sync::Arc;

use base::Clock;
use base::id::Uuid;
use db::Db;
use live::{Live, Player};
use runtime::fault;

use crate::model::{Counts, Head, Mark, Notification};
use crate::store::{self, Filter, Found, InboxReader, Kept, Marking, Which};
use crate::topics::CountsChanged;
use crate::{Config, Error, NotificationId};

/// How many can be marked one by one at once.
pub const MOST_MARKED: usize = 1_000;

/// The inboxes of all players. Clones are the same.
#[derive(Clone, Debug)]
pub struct Inbox {
    db: Db,
    live: Live,
    clock: Clock,
    kept: Kept,
    language: Arc<str>,
}

/// A part of an inbox, the newest first.
#[derive(Clone, Debug)]
pub struct Page {
    pub notifications: Vec<Notification>,
    /// The position to go on before, if there may be more.
    pub next: Option<i64>,
    pub counts: Counts,
    /// The position of the last notification that the user was ever given: a stream that goes on from there misses nothing.
    pub head: i64,
}

/// What comes behind a position.
#[derive(Clone, Debug, Default)]
pub struct Rest {
    pub notifications: Vec<Notification>,
    /// Everything up to this position is among them, or is gone.
    pub up_to: i64,
    /// Whether there may be more.
    pub more: bool,
}

/// Which notifications a player marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    These(Vec<NotificationId>),
    /// All that there are, up to this position: one that has just come is not marked by who has not seen it.
    UpTo(i64),
}

impl Inbox {
    pub fn new(db: Db, live: Live, clock: Clock, config: &Config) -> Self {
        let kept = Kept { unread: config.retention, read: config.read_retention };
        Self { db, live, clock, kept, language: config.language.0.as_str().into() }
    }

    /// The language of texts where a player's own is not there.
    pub fn language(&self) -> &str {
        &self.language
    }

    /// A page of the inbox, from before a position.
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
        let (Found { notifications, rows, last }, counts) = self.db.bounded(reading).await?;
        let next = last.filter(|_| rows >= limit as usize);
        Ok(Page { notifications, next, counts, head })
    }

    /// One notification.
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

    /// Reads the counts, and how many marks they contain at least.
    pub async fn counts_and_marks(&self, user: Uuid) -> Result<(Counts, i64), Error> {
        // In this order: a mark between the two reads is in the counts and not in the number, which costs one more read.
        let marks = self.head(user).await?.marks;
        Ok((self.counts(user).await?, marks))
    }

    /// Reads how far a user's inbox is.
    pub async fn head(&self, user: Uuid) -> Result<Head, Error> {
        Ok(self.heads(&[user]).await?.remove(&user).unwrap_or_default())
    }

    /// Reads how far the inboxes of several users are: those who were ever given a notification.
    pub async fn heads(&self, users: &[Uuid]) -> Result<HashMap<Uuid, Head>, Error> {
        Ok(store::heads(&self.db, users).await?)
    }

    /// What comes behind a position, in order, and not more than so many.
    pub async fn after(&self, user: Uuid, position: i64, limit: u32) -> Result<Rest, Error> {
        // In this order: what is in the inbox up to the head is there by the time it is read.
        let head = self.head(user).await?.position;
        let now = self.clock.now();
        let reading = async {
            let connection = &mut self.db.connection().await?;
            InboxReader { db: &self.db, connection, user, now }.after(position, limit).await
        };
        let Found { notifications, rows, last } = self.db.bounded(reading).await?;
        let more = rows >= limit as usize;
        let last = last.unwrap_or(position);
        Ok(Rest { notifications, up_to: if more { last } else { last.max(head) }, more })
    }

    /// Marks notifications and publishes the new counts. Leaves those alone that have the mark already or do not exist.
    pub async fn mark(&self, user: Uuid, marked: &Marked, mark: Mark) -> Result<Counts, Error> {
        let ids: Vec<Uuid>;
        let which = match marked {
            Marked::UpTo(position) => Which::UpTo(*position),
            Marked::These(those) if those.len() > MOST_MARKED => {
                return Err(Error::TooMany { most: MOST_MARKED });
            }
            Marked::These(those) => {
                ids = those.iter().map(|id| *id.as_uuid()).collect();
                Which::These(&ids)
            }
        };
        let marking = Marking { user, which, mark, kept: self.kept };
        let changed =
            db::retrying(db::Error::is_conflict, || self.db.bounded(self.try_mark(marking))).await?;
        fault::point("notification.marked");
        let counts = self.counts(user).await?;
        if changed > 0 {
            // For the player's other devices. If this fails, their streams find out at a heartbeat.
            let _ = self.live.publish::<CountsChanged>(Player(user), counts).await;
        }
        Ok(counts)
    }

    async fn try_mark(&self, marking: Marking<'_>) -> Result<u64, db::Error> {
        let mut tx = self.db.begin().await?;
        let changed = store::mark(&mut tx, marking, self.clock.now()).await?;
        tx.commit().await?;
        Ok(changed)
    }
}

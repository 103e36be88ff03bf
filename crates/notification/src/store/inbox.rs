//! The rows of the inboxes: reading and marking them.

use std::fmt::Display;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::{Conn, Db, Error, Tx};
use sqlx::AssertSqlSafe;

use super::{all_bytes, uuid};
use crate::model::{Counts, Mark, Notification};

const COLUMNS: &str = "SELECT user_id, position, notification_id, template, texts, data, created_at, expires_at, seen_at, read_at, \
    archived_at FROM notification";

db::row! {
    struct NotificationRow {
        user_id: Vec<u8>,
        position: i64,
        notification_id: Vec<u8>,
        template: String,
        texts: String,
        data: String,
        created_at: i64,
        expires_at: Option<i64>,
        seen_at: Option<i64>,
        read_at: Option<i64>,
        archived_at: Option<i64>,
    }
}

/// Which notifications of a user are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All that are not archived.
    #[default]
    Inbox,
    Unread,
    Archived,
}

/// What a query found. Rows that cannot be read are left out of a list: they are logged, counted, and hold up nobody.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) notifications: Vec<Notification>,
    /// How many rows there were, and the position of the last one.
    pub(crate) rows: usize,
    pub(crate) last: Option<i64>,
}

/// Reads the inbox of a user at a time.
#[derive(Debug)]
pub(crate) struct InboxReader<'a> {
    pub(crate) db: &'a Db,
    pub(crate) connection: &'a mut Conn,
    pub(crate) user: Uuid,
    pub(crate) now: Timestamp,
}

impl InboxReader<'_> {
    /// Reads notifications behind a position that have not expired, the first first.
    pub(crate) async fn after(&mut self, position: i64, limit: u32) -> Result<Found, Error> {
        let text = format!(
            "{COLUMNS} WHERE user_id = ? AND position > ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY position LIMIT ?"
        );
        self.read(text, position, limit).await
    }

    /// Reads notifications before a position that have not expired, the last first.
    pub(crate) async fn before(&mut self, position: i64, filter: Filter, limit: u32) -> Result<Found, Error> {
        let which = match filter {
            Filter::Inbox => "archived_at IS NULL",
            Filter::Unread => "archived_at IS NULL AND read_at IS NULL",
            Filter::Archived => "archived_at IS NOT NULL",
        };
        let text = format!(
            "{COLUMNS} WHERE user_id = ? AND position < ? AND {which} AND (expires_at IS NULL OR expires_at > ?) \
             ORDER BY position DESC LIMIT ?"
        );
        self.read(text, position, limit).await
    }

    async fn read(&mut self, text: String, position: i64, limit: u32) -> Result<Found, Error> {
        let rows: Vec<NotificationRow> = db::on!(self.connection, raw => {
            let query = sqlx::query_as(AssertSqlSafe(text)).bind(self.user.as_bytes().to_vec()).bind(position);
            query.bind(self.now.as_millis()).bind(i64::from(limit)).fetch_all(raw).await?
        });
        let (count, last) = (rows.len(), rows.last().map(|row| row.position));
        let notifications = rows.into_iter().filter_map(|row| notification(self.db, row).ok()).collect();
        Ok(Found { notifications, rows: count, last })
    }

    /// Reads one notification, also if it has expired.
    pub(crate) async fn one(&mut self, id: Uuid) -> Result<Option<Notification>, Error> {
        let text = format!("{COLUMNS} WHERE user_id = ? AND notification_id = ?");
        let row: Option<NotificationRow> = db::on!(self.connection, raw => {
            let query = sqlx::query_as(AssertSqlSafe(text)).bind(self.user.as_bytes().to_vec());
            query.bind(id.as_bytes().to_vec()).fetch_optional(raw).await?
        });
        row.map(|row| notification(self.db, row)).transpose()
    }

    pub(crate) async fn counts(&mut self) -> Result<Counts, Error> {
        const COUNT: &str = "SELECT COUNT(*), COUNT(*) - COUNT(seen_at) FROM notification \
            WHERE user_id = ? AND archived_at IS NULL AND read_at IS NULL AND (expires_at IS NULL OR expires_at > ?)";
        let (unread, unseen): (i64, i64) = db::on!(self.connection, raw => {
            let query = sqlx::query_as(COUNT).bind(self.user.as_bytes().to_vec());
            query.bind(self.now.as_millis()).fetch_one(raw).await?
        });
        Ok(Counts { unread, unseen })
    }
}

/// How long notifications are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// From when they were made.
    pub(crate) unread: Duration,
    /// From when they were read, and no longer than if they had not been.
    pub(crate) read: Duration,
}

/// Which notifications are marked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    These(&'a [Uuid]),
    /// All up to a position.
    UpTo(i64),
}

/// What is marked, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marking<'a> {
    pub(crate) user: Uuid,
    pub(crate) which: Which<'a>,
    pub(crate) mark: Mark,
    pub(crate) kept: Kept,
}

/// Marks notifications of a user, and counts that in their head. Those that have the mark already stay as they are. Returns how many
/// were changed.
pub(crate) async fn mark(tx: &mut Tx, marking: Marking<'_>, now: Timestamp) -> Result<u64, Error> {
    const COUNT: &str = "UPDATE notification_head SET marks = marks + 1 WHERE user_id = ?";
    let Marking { user, which, mark, kept } = marking;
    let at = now.as_millis();
    let least = tx.dialect().pick("MIN", "LEAST");
    let (set, only) = match mark {
        Mark::Seen => (format!("seen_at = {at}"), "seen_at IS NULL"),
        Mark::Read => {
            let end = now.after(kept.read).as_millis();
            let set = format!(
                "read_at = {at}, seen_at = COALESCE(seen_at, {at}), remove_at = {least}(remove_at, {end})"
            );
            (set, "read_at IS NULL")
        }
        Mark::Unread => {
            // As if it had never been read.
            let end = format!("created_at + {}", kept.unread.as_millis());
            let set = format!("read_at = NULL, remove_at = {least}(COALESCE(expires_at, {end}), {end})");
            (set, "read_at IS NOT NULL")
        }
        Mark::Archived => {
            (format!("archived_at = {at}, seen_at = COALESCE(seen_at, {at})"), "archived_at IS NULL")
        }
        Mark::Unarchived => ("archived_at = NULL".to_owned(), "archived_at IS NOT NULL"),
    };
    let ids = match which {
        Which::These(ids) => ids,
        Which::UpTo(_) => &[],
    };
    let condition = match which {
        Which::These(_) => "notification_id IN ({list})",
        Which::UpTo(_) => "position <= ?",
    };
    let ids = all_bytes(ids);
    let text = format!("UPDATE notification SET {set} WHERE user_id = ? AND {only} AND {condition}");
    let (text, padding) = db::list_text(&text, ids.len());
    let changed = db::on!(tx, connection => {
        let query = sqlx::query(text).bind(user.as_bytes().to_vec());
        let query = match which {
            Which::UpTo(position) => query.bind(position),
            Which::These(_) => db::bind_list!(query, ids, padding),
        };
        query.execute(connection).await?.rows_affected()
    });
    if changed > 0 {
        db::on!(tx, connection => {
            sqlx::query(COUNT).bind(user.as_bytes().to_vec()).execute(connection).await?;
        });
    }
    Ok(changed)
}

fn notification(db: &Db, row: NotificationRow) -> Result<Notification, Error> {
    let corrupt = |cause: &dyn Display| {
        let name = format!("{} of user {}", uuid(&row.notification_id), uuid(&row.user_id));
        db.corrupt("notification", name, cause)
    };
    let is_id = |bytes: &[u8]| Uuid::from_slice(bytes).map_err(|cause| corrupt(&cause));
    Ok(Notification {
        notification_id: is_id(&row.notification_id)?,
        user_id: is_id(&row.user_id)?,
        position: row.position,
        texts: serde_json::from_str(&row.texts).map_err(|cause| corrupt(&cause))?,
        data: serde_json::from_str(&row.data).map_err(|cause| corrupt(&cause))?,
        template: row.template,
        created_at: row.created_at,
        expires_at: row.expires_at,
        seen_at: row.seen_at,
        read_at: row.read_at,
        archived_at: row.archived_at,
        traceparent: None,
    })
}

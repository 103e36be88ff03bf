//! Reading and marking the rows of the inboxes.

use std::fmt::Display;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use base::page::{next_page, rows_to_read};
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

/// Selects the notifications of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All that are not archived.
    #[default]
    Inbox,
    Unread,
    Archived,
}

/// The result of a query. A corrupt row is left out of the list, logged and counted, so that it does not block the others.
#[derive(Debug, Default)]
pub(crate) struct InboxRows {
    pub(crate) notifications: Vec<Notification>,
    /// The position of the last row, even if it is corrupt.
    pub(crate) last: Option<i64>,
    /// Whether the query matches more rows.
    pub(crate) has_more: bool,
}

/// Reads the inbox of a user as of a point in time.
#[derive(Debug)]
pub(crate) struct InboxReader<'a> {
    pub(crate) db: &'a Db,
    pub(crate) connection: &'a mut Conn,
    pub(crate) user: Uuid,
    pub(crate) now: Timestamp,
}

impl InboxReader<'_> {
    /// Reads unexpired notifications after a position, oldest first.
    pub(crate) async fn after(&mut self, position: i64, limit: u32) -> Result<InboxRows, Error> {
        let text = format!(
            "{COLUMNS} WHERE user_id = ? AND position > ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY position LIMIT ?"
        );
        self.read(text, position, limit).await
    }

    /// Reads unexpired notifications before a position, newest first.
    pub(crate) async fn before(
        &mut self,
        position: i64,
        filter: Filter,
        limit: u32,
    ) -> Result<InboxRows, Error> {
        let condition = match filter {
            Filter::Inbox => "archived_at IS NULL",
            Filter::Unread => "archived_at IS NULL AND read_at IS NULL",
            Filter::Archived => "archived_at IS NOT NULL",
        };
        let text = format!(
            "{COLUMNS} WHERE user_id = ? AND position < ? AND {condition} AND (expires_at IS NULL OR expires_at > ?) \
             ORDER BY position DESC LIMIT ?"
        );
        self.read(text, position, limit).await
    }

    async fn read(&mut self, text: String, position: i64, limit: u32) -> Result<InboxRows, Error> {
        let mut rows: Vec<NotificationRow> = db::on!(self.connection, raw => {
            let query = sqlx::query_as(AssertSqlSafe(text)).bind(self.user.as_bytes().to_vec()).bind(position);
            query.bind(self.now.as_millis()).bind(i64::from(rows_to_read(limit))).fetch_all(raw).await?
        });
        let has_more = next_page(&mut rows, limit, |_| ()).is_some();
        let last = rows.last().map(|row| row.position);
        let notifications = rows.into_iter().filter_map(|row| notification(self.db, row).ok()).collect();
        Ok(InboxRows { notifications, last, has_more })
    }

    /// Reads one notification, even if it has expired.
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
pub(crate) struct Retention {
    /// Counted from the creation.
    pub(crate) unread: Duration,
    /// Counted from the reading; never longer than `unread` allows.
    pub(crate) read: Duration,
}

/// Selects the notifications to mark.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MarkSelector<'a> {
    Ids(&'a [Uuid]),
    /// All up to a position.
    UpTo(i64),
}

/// A change of marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkChange<'a> {
    pub(crate) user: Uuid,
    pub(crate) selector: MarkSelector<'a>,
    pub(crate) mark: Mark,
    pub(crate) retention: Retention,
}

/// Marks notifications of a user. If any changed, increments the marks of the inbox head. Those that have the mark already stay as they
/// are. Returns how many changed.
pub(crate) async fn mark(tx: &mut Tx, change: MarkChange<'_>, now: Timestamp) -> Result<u64, Error> {
    const COUNT: &str = "UPDATE notification_head SET marks = marks + 1 WHERE user_id = ?";
    let MarkChange { user, selector, mark, retention } = change;
    let at = now.as_millis();
    let least = tx.dialect().pick("MIN", "LEAST");
    let (set, only) = match mark {
        Mark::Seen => (format!("seen_at = {at}"), "seen_at IS NULL"),
        Mark::Read => {
            let end = now.after(retention.read).as_millis();
            let set = format!(
                "read_at = {at}, seen_at = COALESCE(seen_at, {at}), remove_at = {least}(remove_at, {end})"
            );
            (set, "read_at IS NULL")
        }
        Mark::Unread => {
            // The same time as if it had never been read.
            let end = format!("created_at + {}", retention.unread.as_millis());
            let set = format!("read_at = NULL, remove_at = {least}(COALESCE(expires_at, {end}), {end})");
            (set, "read_at IS NOT NULL")
        }
        Mark::Archived => {
            (format!("archived_at = {at}, seen_at = COALESCE(seen_at, {at})"), "archived_at IS NULL")
        }
        Mark::Unarchived => ("archived_at = NULL".to_owned(), "archived_at IS NOT NULL"),
    };
    let ids = match selector {
        MarkSelector::Ids(ids) => ids,
        MarkSelector::UpTo(_) => &[],
    };
    let condition = match selector {
        MarkSelector::Ids(_) => "notification_id IN ({list})",
        MarkSelector::UpTo(_) => "position <= ?",
    };
    let ids = all_bytes(ids);
    let text = format!("UPDATE notification SET {set} WHERE user_id = ? AND {only} AND {condition}");
    let (text, padding) = db::list_text(&text, ids.len());
    let changed = db::on!(tx, connection => {
        let query = sqlx::query(text).bind(user.as_bytes().to_vec());
        let query = match selector {
            MarkSelector::UpTo(position) => query.bind(position),
            MarkSelector::Ids(_) => db::bind_list!(query, ids, padding),
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

/// Reads a notification of any user.
pub(crate) async fn notification_by_id(db: &Db, id: Uuid) -> Result<Option<Notification>, Error> {
    let text = format!("{COLUMNS} WHERE notification_id = ?");
    let reading = async {
        let mut connection = db.connection().await?;
        let row: Option<NotificationRow> = db::on!(connection, raw => {
            sqlx::query_as(AssertSqlSafe(text)).bind(id.as_bytes().to_vec()).fetch_optional(raw).await?
        });
        row.map(|row| notification(db, row)).transpose()
    };
    db.bounded(reading).await
}

/// Reads the newest notifications of a user, in every state. Leaves out corrupt rows.
pub(crate) async fn newest_of_user(
    db: &Db,
    user: Uuid,
    before: Option<i64>,
    limit: u32,
) -> Result<Vec<Notification>, Error> {
    let text = format!("{COLUMNS} WHERE user_id = ? AND position < ? ORDER BY position DESC LIMIT ?");
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<NotificationRow> = db::on!(connection, raw => {
            let query = sqlx::query_as(AssertSqlSafe(text)).bind(user.as_bytes().to_vec());
            query.bind(before.unwrap_or(i64::MAX)).bind(i64::from(limit)).fetch_all(raw).await?
        });
        Ok(rows.into_iter().filter_map(|row| notification(db, row).ok()).collect())
    };
    db.bounded(reading).await
}

/// Returns when an event was taken in. None if it was not, or had no recipients.
pub(crate) async fn event_received(db: &Db, event: Uuid) -> Result<Option<Timestamp>, Error> {
    const READ: &str = "SELECT received_at FROM notification_event WHERE event_id = ?";
    let reading = async {
        let mut connection = db.connection().await?;
        let found: Option<(i64,)> = db::on!(connection, raw => {
            sqlx::query_as(READ).bind(event.as_bytes().to_vec()).fetch_optional(raw).await?
        });
        Ok(found.map(|(at,)| Timestamp::from_millis(at)))
    };
    db.bounded(reading).await
}

fn notification(db: &Db, row: NotificationRow) -> Result<Notification, Error> {
    let corrupt = |cause: &dyn Display| {
        let name = format!("{} of user {}", uuid(&row.notification_id), uuid(&row.user_id));
        db.corrupt("notification", name, cause)
    };
    let id = |bytes: &[u8]| Uuid::from_slice(bytes).map_err(|cause| corrupt(&cause));
    Ok(Notification {
        notification_id: id(&row.notification_id)?,
        user_id: id(&row.user_id)?,
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

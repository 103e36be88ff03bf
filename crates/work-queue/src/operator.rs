//! Queries for operators, and reopening of done items.

use std::sync::Arc;

use base::Timestamp;
use base::id::Uuid;
use db::{Error, ListStatement, bind_list};
use sqlx::AssertSqlSafe;

use crate::item::{DONE, FAILED, HELD, OPEN, SKIPPED, key_hash, uuid};
use crate::statement::StatementBuilder;
use crate::{State, WorkQueue};

/// How many items one statement reopens.
const REOPENED_AT_ONCE: usize = 500;

/// An item, as operators see it.
#[derive(Clone, Debug)]
pub struct ItemView {
    pub number: i64,
    pub id: Uuid,
    pub user: Uuid,
    pub key: String,
    pub state: State,
    pub created: Timestamp,
    /// Pending: when it may be claimed. In flight: when the lease ends. Otherwise: when it entered its state.
    pub due: Timestamp,
    pub attempts: u32,
    pub lease: i64,
    pub holder: Option<Uuid>,
    /// Why the last attempt was not successful.
    pub cause: Option<String>,
    pub payload: Vec<u8>,
}

/// A key whose first unfinished item has failed, so that the others wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    pub key: String,
    /// The number of the failed item.
    pub number: i64,
    pub id: Uuid,
    pub cause: Option<String>,
    pub since: Timestamp,
    /// How many items wait behind it.
    pub waiting: u64,
}

/// A key whose pending items wait after a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyBackoff {
    /// When the first of the failed items is retried.
    pub until: Timestamp,
    /// How many items wait.
    pub waiting: u64,
    /// The cause of one of the failed attempts.
    pub cause: Option<String>,
}

/// Selects items to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    All,
    Open,
    Done,
    Failed,
    Skipped,
    Held,
}

impl Filter {
    /// Returns the value of the column `state`. None for all states.
    pub(crate) const fn state(self) -> Option<i32> {
        match self {
            Self::All => None,
            Self::Open => Some(OPEN),
            Self::Done => Some(DONE),
            Self::Failed => Some(FAILED),
            Self::Skipped => Some(SKIPPED),
            Self::Held => Some(HELD),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct OperatorStatements {
    all: Arc<str>,
    of_state: Arc<str>,
    by_item_id: Arc<str>,
    by_number: Arc<str>,
    blocked: Arc<str>,
    key_backoff: Arc<str>,
    keys_done_since: Arc<str>,
    release: ListStatement,
    done_of_keys: ListStatement,
    reopen: ListStatement,
    done_after: Arc<str>,
    done_before: Arc<str>,
}

db::row! {
    pub(crate) struct ItemRow {
        id: i64,
        item_id: Vec<u8>,
        user_id: Vec<u8>,
        item_key: String,
        state: i32,
        due_at: i64,
        attempts: i32,
        lease: i64,
        holder: Option<Vec<u8>>,
        created_at: i64,
        cause: Option<String>,
        payload: Vec<u8>,
    }
}

db::row! {
    struct BlockedRow {
        item_key: String,
        id: i64,
        item_id: Vec<u8>,
        cause: Option<String>,
        due_at: i64,
        waiting: i64,
    }
}

impl OperatorStatements {
    pub(crate) fn new(text: &StatementBuilder) -> Self {
        const COLUMNS: &str = "SELECT id, item_id, user_id, item_key, state, due_at, attempts, lease, holder, created_at, cause, payload";
        let select = |rest: &str| text.fixed(&format!("{COLUMNS} FROM {{table}} {rest}"));
        Self {
            all: select("WHERE id < ? ORDER BY id DESC LIMIT ?"),
            of_state: select("{by_state} WHERE state = ? AND id < ? ORDER BY due_at, id LIMIT ?"),
            by_item_id: select("WHERE item_id = ?"),
            by_number: select("WHERE id = ?"),
            blocked: text.fixed(&format!(
                "SELECT f.item_key, f.id, f.item_id, f.cause, f.due_at, \
                 (SELECT COUNT(*) FROM {{table}} w WHERE w.key_hash = f.key_hash AND w.id > f.id AND w.state = {OPEN}) AS waiting \
                 FROM {{table}} f WHERE f.state = {FAILED} ORDER BY f.due_at, f.id LIMIT ?"
            )),
            key_backoff: text.fixed(&format!(
                "SELECT MIN(CASE WHEN cause IS NOT NULL AND due_at > {{now}} THEN due_at END), COUNT(*), MAX(CASE WHEN attempts > 0 THEN cause END) \
                 FROM {{table}} {{by_key}} WHERE key_hash = ? AND item_key = ? AND state = {OPEN} AND holder IS NULL"
            )),
            keys_done_since: text.fixed(&format!(
                "SELECT DISTINCT key_hash FROM (SELECT key_hash FROM {{table}} {{by_state}} \
                 WHERE state = {DONE} AND due_at >= ? AND due_at <= ? ORDER BY due_at, id LIMIT ?) AS some"
            )),
            // Changes only claimed items but locks all open ones, so that no worker claims one before the items ahead of it are
            // reopened. MySQL assigns from left to right, so `holder` comes last.
            release: text.list(
                &format!(
                    "UPDATE {{table}} {{by_key}} SET due_at = CASE WHEN holder IS NULL THEN due_at ELSE created_at END, \
                     attempts = CASE WHEN holder IS NULL THEN attempts ELSE 0 END, lease = lease + (holder IS NOT NULL), \
                     holder = NULL WHERE state = {OPEN} AND key_hash IN ({{list}})"
                ),
                REOPENED_AT_ONCE,
            ),
            // Includes items that were done since the command began. Otherwise the items before them would be handled after them.
            done_of_keys: text.list(
                &format!(
                    "SELECT id FROM {{table}} {{by_key}} WHERE state = {DONE} AND due_at >= ? \
                     AND key_hash IN ({{list}}) ORDER BY key_hash, id"
                ),
                REOPENED_AT_ONCE,
            ),
            reopen: text.list(
                &format!(
                    "UPDATE {{table}} SET state = {OPEN}, due_at = created_at, attempts = 0, holder = NULL, lease = lease + 1 \
                     WHERE state = {DONE} AND id IN ({{list}})"
                ),
                REOPENED_AT_ONCE,
            ),
            done_after: select(&format!("WHERE id > ? AND state = {DONE} AND due_at >= ? ORDER BY id LIMIT ?")),
            done_before: select(&format!(
                "{{by_state}} WHERE state = {DONE} AND (due_at < ? OR due_at = ? AND id < ?) \
                 ORDER BY due_at DESC, id DESC LIMIT ?"
            )),
        }
    }
}

impl WorkQueue {
    /// Lists items, newest first. With a state, lists those first that have been in it the longest.
    pub async fn list(&self, filter: Filter, limit: u32) -> Result<Vec<ItemView>, Error> {
        let state = filter.state();
        let text = if state.is_some() { &self.operator.of_state } else { &self.operator.all };
        let text = AssertSqlSafe(text.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<ItemRow> = db::on!(connection, raw => {
                let mut query = sqlx::query_as(text);
                if let Some(state) = state {
                    query = query.bind(state);
                }
                query.bind(i64::MAX).bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(item_view).collect())
        };
        self.db.bounded(reading).await
    }

    /// Returns the item with this id.
    pub async fn find(&self, id: Uuid) -> Result<Option<ItemView>, Error> {
        let text = AssertSqlSafe(self.operator.by_item_id.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let row: Option<ItemRow> = db::on!(connection, raw => {
                sqlx::query_as(text).bind(&id.as_bytes()[..]).fetch_optional(raw).await?
            });
            Ok(row.map(item_view))
        };
        self.db.bounded(reading).await
    }

    /// Returns the item with this number.
    pub async fn find_by_number(&self, number: i64) -> Result<Option<ItemView>, Error> {
        let text = AssertSqlSafe(self.operator.by_number.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let row: Option<ItemRow> =
                db::on!(connection, raw => sqlx::query_as(text).bind(number).fetch_optional(raw).await?);
            Ok(row.map(item_view))
        };
        self.db.bounded(reading).await
    }

    /// Returns the backoff of a key, or none if no item of it waits after an unsuccessful attempt.
    pub async fn key_backoff(&self, key: &str) -> Result<Option<KeyBackoff>, Error> {
        let text = AssertSqlSafe(self.operator.key_backoff.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let found: (Option<i64>, i64, Option<String>) = db::on!(connection, raw => {
                sqlx::query_as(text).bind(key_hash(key)).bind(key).fetch_one(raw).await?
            });
            Ok::<_, Error>(found)
        };
        let (until, waiting, cause) = self.db.bounded(reading).await?;
        let backoff = |until| KeyBackoff {
            until: Timestamp::from_millis(until),
            waiting: waiting.unsigned_abs(),
            cause,
        };
        Ok(until.map(backoff))
    }

    /// Lists keys whose first unfinished item has failed, longest blocked first. Empty for an unordered queue.
    pub async fn blocked_keys(&self, limit: u32) -> Result<Vec<BlockedKey>, Error> {
        if !self.is_ordered {
            return Ok(Vec::new());
        }
        let text = AssertSqlSafe(self.operator.blocked.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<BlockedRow> = db::on!(connection, raw => {
                sqlx::query_as(text).bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok::<_, Error>(rows)
        };
        let rows = self.db.bounded(reading).await?;
        let blocked = |row: BlockedRow| BlockedKey {
            key: row.item_key,
            number: row.id,
            id: uuid(&row.item_id),
            cause: row.cause,
            since: Timestamp::from_millis(row.due_at),
            waiting: row.waiting.unsigned_abs(),
        };
        Ok(rows.into_iter().map(blocked).collect())
    }

    /// Reopens all items that were done at this time or later, so that they are handled again. Returns how many items that are.
    ///
    /// Each key is reopened as a whole. If the call is interrupted, calling it again continues with the other keys.
    pub async fn reopen_done_since(&self, since: Timestamp) -> Result<u64, Error> {
        let mut all = 0;
        // Keys that workers have finished again meanwhile are not reopened twice.
        let until = self.db.now().await?;
        while let Some(reopened) = self.reopen_some_keys(since, until).await? {
            all += reopened;
        }
        Ok(all)
    }

    /// Reopens the next keys that have items done between `since` and `until`. Each key is reopened with all its items done since
    /// `since`. Returns how many items that are, or none if there are no more keys. Workers lose their items of these keys that are in
    /// flight; those items follow the reopened ones and are handled again.
    ///
    /// One transaction reopens a key, however many items it has. With a partly reopened key, an item behind the done ones would
    /// overtake the reopened ones.
    pub async fn reopen_some_keys(&self, since: Timestamp, until: Timestamp) -> Result<Option<u64>, Error> {
        // A worker that changes the same items at the same time can cause a deadlock.
        db::retry_conflicts(Error::is_conflict, || self.try_reopen_some_keys(since, until)).await
    }

    async fn try_reopen_some_keys(&self, since: Timestamp, until: Timestamp) -> Result<Option<u64>, Error> {
        let (since, until) = (since.as_millis(), until.as_millis());
        let mut tx = self.db.begin().await?;
        let keys = async {
            let text = AssertSqlSafe(self.operator.keys_done_since.clone());
            let keys: Vec<(i64,)> = db::on!(tx, connection => {
                let query = sqlx::query_as(text).bind(since).bind(until).bind(REOPENED_AT_ONCE as i64);
                query.fetch_all(connection).await?
            });
            let keys: Vec<i64> = keys.into_iter().map(|(key,)| key).collect();
            if self.is_ordered {
                // Before reading the done items, so that they include an item that a worker has just finished.
                let (text, padding) = self.operator.release.for_length(keys.len());
                db::on!(tx, connection => {
                    bind_list!(sqlx::query(text), keys, padding).execute(connection).await?;
                });
            }
            let (text, padding) = self.operator.done_of_keys.for_length(keys.len());
            let numbers: Vec<(i64,)> = db::on!(tx, connection => {
                bind_list!(sqlx::query_as(text).bind(since), keys, padding).fetch_all(connection).await?
            });
            Ok::<_, Error>(numbers.into_iter().map(|(number,)| number).collect::<Vec<i64>>())
        };
        let numbers = self.db.bounded(keys).await?;
        if numbers.is_empty() {
            tx.rollback().await?;
            return Ok(None);
        }
        let mut reopened = 0;
        for numbers in numbers.chunks(REOPENED_AT_ONCE) {
            let (text, padding) = self.operator.reopen.for_length(numbers.len());
            // Each statement has its own time limit: a key may have very many items.
            let reopening = async {
                Ok::<_, Error>(db::on!(tx, connection => {
                    bind_list!(sqlx::query(text), numbers, padding).execute(connection).await?.rows_affected()
                }))
            };
            reopened += self.db.bounded(reopening).await?;
        }
        tx.wake_after_commit(&self.pushed);
        self.db.bounded(tx.commit()).await?;
        Ok(Some(reopened))
    }

    /// Lists items that were done at this time or later and have a higher number, in the order of their numbers.
    pub async fn done_after(
        &self,
        number: i64,
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<ItemView>, Error> {
        let text = AssertSqlSafe(self.operator.done_after.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<ItemRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(text).bind(number).bind(since.as_millis()).bind(i64::from(limit));
                query.fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(item_view).collect())
        };
        self.db.bounded(reading).await
    }

    /// Lists done items, the last one first, starting before the given position or at the last one.
    pub async fn done_before(
        &self,
        before: Option<(Timestamp, i64)>,
        limit: u32,
    ) -> Result<Vec<ItemView>, Error> {
        let (due, number) = before.map_or((i64::MAX, i64::MAX), |(due, number)| (due.as_millis(), number));
        let text = AssertSqlSafe(self.operator.done_before.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<ItemRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(text).bind(due).bind(due).bind(number).bind(i64::from(limit));
                query.fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(item_view).collect())
        };
        self.db.bounded(reading).await
    }
}

pub(crate) fn item_view(row: ItemRow) -> ItemView {
    ItemView {
        number: row.id,
        id: uuid(&row.item_id),
        user: uuid(&row.user_id),
        key: row.item_key,
        state: State::from_columns(row.state, row.holder.is_some()),
        created: Timestamp::from_millis(row.created_at),
        due: Timestamp::from_millis(row.due_at),
        attempts: row.attempts.unsigned_abs(),
        lease: row.lease,
        holder: row.holder.map(|holder| uuid(&holder)),
        cause: row.cause,
        payload: row.payload,
    }
}

//! Bounded reads for the screens of operators. Each reads a limited number of index entries, however many items there are.

use base::Timestamp;
use base::id::Uuid;
use db::Error;
use sqlx::AssertSqlSafe;

use crate::item::{DONE, FAILED, OPEN, key_hash, uuid};
use crate::operator::{ItemRow, item_view};
use crate::statement::StatementBuilder;
use crate::{FailedFilter, Filter, ItemView, State, WorkQueue};

const COLUMNS: &str = "SELECT id, item_id, user_id, item_key, state, due_at, attempts, lease, holder, created_at, cause, payload FROM {table}";
const COUNT: &str =
    "SELECT COUNT(*) FROM (SELECT id FROM {table} {by_state} WHERE state = ? LIMIT ?) AS counted";
const COUNT_DONE: &str = "SELECT COUNT(*) FROM (SELECT id FROM {table} {by_state} \
    WHERE state = {DONE} AND due_at >= ? AND due_at <= ? LIMIT ?) AS counted";
const COUNT_WAITING: &str = "SELECT COUNT(*) FROM (SELECT id FROM {table} {by_key} \
    WHERE key_hash = ? AND id > ? AND state = {OPEN} LIMIT ?) AS counted";
const FAILED_AHEAD: &str = "SELECT item_id FROM {table} {by_key} WHERE key_hash = ? AND id < ? AND state = {FAILED} ORDER BY id LIMIT 1";
const CAUSES: &str = "SELECT cause, COUNT(*) AS items, MIN(due_at) AS first_at, MAX(due_at) AS last_at FROM \
    (SELECT cause, due_at FROM {table} {by_state} WHERE state = {FAILED} ORDER BY due_at DESC, id DESC LIMIT ?) AS newest \
    GROUP BY cause ORDER BY items DESC, cause LIMIT ?";
/// Examines a limited number of index entries, and the payloads of this user's items among them.
const CONTAINING: &str = "SELECT item.id, item.item_id, item.user_id, item.item_key, item.state, item.due_at, item.attempts, item.lease, \
    item.holder, item.created_at, item.cause, item.payload FROM \
    (SELECT id FROM {table} {by_state} WHERE state = ? AND due_at >= ? AND due_at <= ? ORDER BY due_at, id LIMIT ?) AS examined \
    JOIN {table} AS item ON item.id = examined.id WHERE item.user_id = ? AND INSTR(item.payload, ?) > 0 LIMIT 1";
const IDS_DONE: &str = "SELECT item_id FROM {table} {by_state} WHERE state = {DONE} AND due_at >= ? AND due_at <= ? \
    ORDER BY due_at DESC, id DESC LIMIT ?";
const OPEN_KEYS: &str = "SELECT item_key, COUNT(*) AS items, \
    MIN(CASE WHEN cause IS NOT NULL AND due_at > {now} THEN due_at END) AS retry_at, MIN(created_at) AS oldest_at, \
    MAX(CASE WHEN attempts > 0 THEN cause END) AS cause FROM \
    (SELECT item_key, cause, due_at, created_at, attempts FROM {table} {by_state} \
     WHERE state = {OPEN} ORDER BY due_at, id LIMIT ?) AS first_due \
    GROUP BY item_key ORDER BY item_key";

/// The place of an item in a list, after which the next page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageKey {
    pub due: Timestamp,
    pub number: i64,
}

impl PageKey {
    /// Writes the key as it is in URLs.
    pub fn to_text(self) -> String {
        format!("{}-{}", self.due.as_millis(), self.number)
    }

    /// Reads a key from a URL.
    pub fn parse(text: &str) -> Option<Self> {
        let (due, number) = text.rsplit_once('-')?;
        Some(Self { due: Timestamp::from_millis(due.parse().ok()?), number: number.parse().ok()? })
    }
}

/// Failed items with the same cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CauseGroup {
    pub cause: Option<String>,
    pub items: u64,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// The open items of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenKey {
    pub key: String,
    pub items: u64,
    /// When the first item is retried that waits after an unsuccessful attempt.
    pub retry: Option<Timestamp>,
    pub oldest: Timestamp,
    pub cause: Option<String>,
}

db::row! {
    struct CauseRow {
        cause: Option<String>,
        items: i64,
        first_at: i64,
        last_at: i64,
    }
}

db::row! {
    struct OpenKeyRow {
        item_key: String,
        items: i64,
        retry_at: Option<i64>,
        oldest_at: i64,
        cause: Option<String>,
    }
}

impl WorkQueue {
    /// Lists a page of items, newest first. With a state, those that entered it last come first, and open ones that are due last.
    pub async fn page(
        &self,
        filter: Filter,
        after: Option<PageKey>,
        limit: u32,
    ) -> Result<Vec<ItemView>, Error> {
        let state = filter.state();
        let rest = match state {
            None => "WHERE id < ? ORDER BY id DESC LIMIT ?",
            Some(_) => {
                "{by_state} WHERE state = ? AND due_at <= ? AND (due_at < ? OR id < ?) ORDER BY due_at DESC, id DESC LIMIT ?"
            }
        };
        let text = AssertSqlSafe(self.filled(&format!("{COLUMNS} {rest}")));
        let (due, number) = after.map_or((i64::MAX, i64::MAX), |after| (after.due.as_millis(), after.number));
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<ItemRow> = db::on!(connection, raw => {
                let mut query = sqlx::query_as(text);
                if let Some(state) = state {
                    query = query.bind(state).bind(due).bind(due);
                }
                query.bind(number).bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(item_view).collect())
        };
        self.db.bounded(reading).await
    }

    /// Lists the newest items of a key.
    pub async fn newest_of_key(&self, key: &str, limit: u32) -> Result<Vec<ItemView>, Error> {
        let text = self.filled(&format!(
            "{COLUMNS} {{by_key}} WHERE key_hash = ? AND item_key = ? ORDER BY id DESC LIMIT ?"
        ));
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<ItemRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(AssertSqlSafe(text)).bind(key_hash(key)).bind(key);
                query.bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(item_view).collect())
        };
        self.db.bounded(reading).await
    }

    /// Lists the newest items of a user, of those with a lower number than `before`. The table must have an index on `user_id`.
    pub async fn newest_of_user(
        &self,
        user: Uuid,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<ItemView>, Error> {
        let text = self.filled(&format!("{COLUMNS} WHERE user_id = ? AND id < ? ORDER BY id DESC LIMIT ?"));
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<ItemRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(AssertSqlSafe(text)).bind(user.as_bytes().to_vec());
                query.bind(before.unwrap_or(i64::MAX)).bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(item_view).collect())
        };
        self.db.bounded(reading).await
    }

    /// Finds an item of a user in this state whose payload contains these bytes. Examines at most `limit` items, which entered the state in
    /// this period, the oldest first. [`Filter::All`] finds nothing.
    pub async fn find_containing(
        &self,
        filter: Filter,
        (since, until): (Timestamp, Timestamp),
        user: Uuid,
        bytes: &[u8],
        limit: u32,
    ) -> Result<Option<ItemView>, Error> {
        let Some(state) = filter.state() else { return Ok(None) };
        let text = self.filled(CONTAINING);
        let reading = async {
            let mut connection = self.db.connection().await?;
            let row: Option<ItemRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(AssertSqlSafe(text)).bind(state);
                let query = query.bind(since.as_millis()).bind(until.as_millis()).bind(i64::from(limit));
                query.bind(user.as_bytes().to_vec()).bind(bytes).fetch_optional(raw).await?
            });
            Ok(row.map(item_view))
        };
        self.db.bounded(reading).await
    }

    /// Returns the ids of items that were done in this period, the newest first, at most `limit`.
    pub async fn ids_done(&self, since: Timestamp, until: Timestamp, limit: u32) -> Result<Vec<Uuid>, Error> {
        let text = self.filled(IDS_DONE);
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<(Vec<u8>,)> = db::on!(connection, raw => {
                let query = sqlx::query_as(AssertSqlSafe(text)).bind(since.as_millis()).bind(until.as_millis());
                query.bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok(rows.iter().map(|(id,)| uuid(id)).collect())
        };
        self.db.bounded(reading).await
    }

    /// Counts the items in a state, up to `cap + 1`. [`Filter::All`] counts nothing.
    pub async fn count(&self, filter: Filter, cap: u64) -> Result<u64, Error> {
        let Some(state) = filter.state() else { return Ok(0) };
        self.counted(COUNT, &[state.into(), limit(cap)]).await
    }

    /// Counts the items that were done in this period, up to `cap + 1`.
    pub async fn count_done(&self, since: Timestamp, until: Timestamp, cap: u64) -> Result<u64, Error> {
        self.counted(COUNT_DONE, &[since.as_millis(), until.as_millis(), limit(cap)]).await
    }

    /// Counts the open items behind an item of a key, up to `cap + 1`.
    pub async fn count_behind(&self, item: &ItemView, cap: u64) -> Result<u64, Error> {
        self.counted(COUNT_WAITING, &[key_hash(&item.key), item.number, limit(cap)]).await
    }

    /// Returns the failed item that an open item waits behind: the first one of its key.
    pub async fn failed_ahead(&self, item: &ItemView) -> Result<Option<Uuid>, Error> {
        if !matches!(item.state, State::Pending | State::InFlight) {
            return Ok(None);
        }
        let text = self.filled(FAILED_AHEAD);
        let (hash, number) = (key_hash(&item.key), item.number);
        let reading = async {
            let mut connection = self.db.connection().await?;
            let found: Option<(Vec<u8>,)> = db::on!(connection, raw => {
                sqlx::query_as(AssertSqlSafe(text)).bind(hash).bind(number).fetch_optional(raw).await?
            });
            Ok(found.map(|(id,)| uuid(&id)))
        };
        self.db.bounded(reading).await
    }

    /// Counts the failed items that match, up to `cap + 1`.
    pub async fn count_failed_up_to(&self, filter: &FailedFilter, cap: u64) -> Result<u64, Error> {
        self.count_matching(filter, limit(cap)).await
    }

    /// Groups the newest `newest` failed items by cause. The most frequent cause is first.
    pub async fn causes(&self, newest: u32, groups: u32) -> Result<Vec<CauseGroup>, Error> {
        let text = self.filled(CAUSES);
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<CauseRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(AssertSqlSafe(text)).bind(i64::from(newest)).bind(i64::from(groups));
                query.fetch_all(raw).await?
            });
            let group = |row: CauseRow| CauseGroup {
                cause: row.cause,
                items: row.items.unsigned_abs(),
                first: Timestamp::from_millis(row.first_at),
                last: Timestamp::from_millis(row.last_at),
            };
            Ok(rows.into_iter().map(group).collect())
        };
        self.db.bounded(reading).await
    }

    /// Groups the open items that are due first, at most `items`, by key.
    pub async fn open_keys(&self, items: u32) -> Result<Vec<OpenKey>, Error> {
        let text = self.filled(OPEN_KEYS);
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<OpenKeyRow> = db::on!(connection, raw => {
                sqlx::query_as(AssertSqlSafe(text)).bind(i64::from(items)).fetch_all(raw).await?
            });
            let key = |row: OpenKeyRow| OpenKey {
                key: row.item_key,
                items: row.items.unsigned_abs(),
                retry: row.retry_at.map(Timestamp::from_millis),
                oldest: Timestamp::from_millis(row.oldest_at),
                cause: row.cause,
            };
            Ok(rows.into_iter().map(key).collect())
        };
        self.db.bounded(reading).await
    }

    async fn counted(&self, text: &str, values: &[i64]) -> Result<u64, Error> {
        let text = self.filled(text);
        let counting = async {
            let mut connection = self.db.connection().await?;
            let count: i64 = db::on!(connection, raw => {
                let query = sqlx::query_scalar(AssertSqlSafe(text));
                values.iter().fold(query, |query, value| query.bind(*value)).fetch_one(raw).await?
            });
            Ok(count.unsigned_abs())
        };
        self.db.bounded(counting).await
    }

    fn filled(&self, text: &str) -> String {
        let states = [("{OPEN}", OPEN), ("{DONE}", DONE), ("{FAILED}", FAILED)];
        let text = states
            .into_iter()
            .fold(text.to_owned(), |text, (name, state)| text.replace(name, &state.to_string()));
        StatementBuilder::new(self.table, self.db.dialect()).fill(&text)
    }
}

/// Returns the limit of a count up to `cap`: one more shows that there are more.
fn limit(cap: u64) -> i64 {
    i64::try_from(cap).unwrap_or(i64::MAX - 1).saturating_add(1)
}

//! What an operator can see, and have done again.

use std::sync::Arc;

use base::Timestamp;
use base::id::Uuid;
use db::{Error, ListStatement, bind_list};
use sqlx::AssertSqlSafe;

use crate::item::{DONE, FAILED, HELD, OPEN, SKIPPED, key_hash, uuid};
use crate::statement::Text;
use crate::{Queue, State};

/// How many items are sent again by one statement.
const AGAIN_AT_ONCE: usize = 500;

/// An item as an operator sees it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub number: i64,
    pub id: Uuid,
    pub user: Uuid,
    pub key: String,
    pub state: State,
    pub created: Timestamp,
    /// Pending: when it may be claimed. In flight: when the lease ends. Else: since when it is what it is.
    pub due: Timestamp,
    pub attempts: u32,
    pub lease: i64,
    pub holder: Option<Uuid>,
    /// Why it was not done at the last attempt.
    pub cause: Option<String>,
    pub payload: Vec<u8>,
}

/// A key whose first open item has failed, so that the rest waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    pub key: String,
    /// The number of the item that has failed, its name, and why it has.
    pub number: i64,
    pub id: Uuid,
    pub cause: Option<String>,
    pub since: Timestamp,
    /// How many items wait behind it.
    pub waiting: u64,
}

/// What waits for a key that was put off after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resting {
    /// When the first of those that failed is tried again.
    pub until: Timestamp,
    /// How many items wait.
    pub waiting: u64,
    /// Why one was tried in vain.
    pub cause: Option<String>,
}

/// Which items to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    All,
    Open,
    Done,
    Failed,
    Skipped,
    Held,
}

#[derive(Clone, Debug)]
pub(crate) struct OperatorTexts {
    all: Arc<str>,
    of_state: Arc<str>,
    by_item_id: Arc<str>,
    by_number: Arc<str>,
    blocked: Arc<str>,
    resting: Arc<str>,
    keys_done_since: Arc<str>,
    take_back: ListStatement,
    done_of_keys: ListStatement,
    again: ListStatement,
    done_after: Arc<str>,
    done_before: Arc<str>,
}

db::row! {
    struct EntryRow {
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

impl OperatorTexts {
    pub(crate) fn new(text: &Text) -> Self {
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
            resting: text.fixed(&format!(
                "SELECT MIN(CASE WHEN cause IS NOT NULL AND due_at > {{now}} THEN due_at END), COUNT(*), MAX(CASE WHEN attempts > 0 THEN cause END) \
                 FROM {{table}} {{by_key}} WHERE key_hash = ? AND item_key = ? AND state = {OPEN} AND holder IS NULL"
            )),
            keys_done_since: text.fixed(&format!(
                "SELECT DISTINCT key_hash FROM (SELECT key_hash FROM {{table}} {{by_state}} \
                 WHERE state = {DONE} AND due_at >= ? AND due_at <= ? ORDER BY due_at, id LIMIT ?) AS some"
            )),
            // Changes claimed items only, and locks all open ones: no worker claims one before the items ahead of it are open again.
            // MySQL assigns from left to right, so `holder` comes last.
            take_back: text.list(
                &format!(
                    "UPDATE {{table}} {{by_key}} SET due_at = CASE WHEN holder IS NULL THEN due_at ELSE created_at END, \
                     attempts = CASE WHEN holder IS NULL THEN attempts ELSE 0 END, lease = lease + (holder IS NOT NULL), \
                     holder = NULL WHERE state = {OPEN} AND key_hash IN ({{list}})"
                ),
                AGAIN_AT_ONCE,
            ),
            // Also what was done since the command began: otherwise the items before it would be done after it.
            done_of_keys: text.list(
                &format!(
                    "SELECT id FROM {{table}} {{by_key}} WHERE state = {DONE} AND due_at >= ? \
                     AND key_hash IN ({{list}}) ORDER BY key_hash, id"
                ),
                AGAIN_AT_ONCE,
            ),
            again: text.list(
                &format!(
                    "UPDATE {{table}} SET state = {OPEN}, due_at = created_at, attempts = 0, holder = NULL, lease = lease + 1 \
                     WHERE state = {DONE} AND id IN ({{list}})"
                ),
                AGAIN_AT_ONCE,
            ),
            done_after: select(&format!("WHERE id > ? AND state = {DONE} AND due_at >= ? ORDER BY id LIMIT ?")),
            done_before: select(&format!(
                "{{by_state}} WHERE state = {DONE} AND (due_at < ? OR due_at = ? AND id < ?) \
                 ORDER BY due_at DESC, id DESC LIMIT ?"
            )),
        }
    }
}

impl Queue {
    /// Items, the newest first, or (those of one state) the longest in it first.
    pub async fn list(&self, filter: Filter, limit: u32) -> Result<Vec<Entry>, Error> {
        let state = match filter {
            Filter::All => None,
            Filter::Open => Some(OPEN),
            Filter::Done => Some(DONE),
            Filter::Failed => Some(FAILED),
            Filter::Skipped => Some(SKIPPED),
            Filter::Held => Some(HELD),
        };
        let text = if state.is_some() { &self.operator.of_state } else { &self.operator.all };
        let text = AssertSqlSafe(text.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<EntryRow> = db::on!(connection, raw => {
                let mut query = sqlx::query_as(text);
                if let Some(state) = state {
                    query = query.bind(state);
                }
                query.bind(i64::MAX).bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(entry).collect())
        };
        self.db.bounded(reading).await
    }

    /// The item of this name.
    pub async fn find(&self, id: Uuid) -> Result<Option<Entry>, Error> {
        let text = AssertSqlSafe(self.operator.by_item_id.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let row: Option<EntryRow> = db::on!(connection, raw => {
                sqlx::query_as(text).bind(&id.as_bytes()[..]).fetch_optional(raw).await?
            });
            Ok(row.map(entry))
        };
        self.db.bounded(reading).await
    }

    /// The item with this number.
    pub async fn find_number(&self, number: i64) -> Result<Option<Entry>, Error> {
        let text = AssertSqlSafe(self.operator.by_number.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let row: Option<EntryRow> =
                db::on!(connection, raw => sqlx::query_as(text).bind(number).fetch_optional(raw).await?);
            Ok(row.map(entry))
        };
        self.db.bounded(reading).await
    }

    /// Finds out whether the items of a key wait because one of them was not done at its last attempt.
    pub async fn resting(&self, key: &str) -> Result<Option<Resting>, Error> {
        let text = AssertSqlSafe(self.operator.resting.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let found: (Option<i64>, i64, Option<String>) = db::on!(connection, raw => {
                sqlx::query_as(text).bind(key_hash(key)).bind(key).fetch_one(raw).await?
            });
            Ok::<_, Error>(found)
        };
        let (until, waiting, cause) = self.db.bounded(reading).await?;
        let resting =
            |until| Resting { until: Timestamp::from_millis(until), waiting: waiting.unsigned_abs(), cause };
        Ok(until.map(resting))
    }

    /// Keys whose first item has failed, the longest blocked first; none in a queue without order.
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

    /// Reopens everything that was done at this time or later, so that it is done again. Returns how many items that are.
    ///
    /// Stopped in the middle it has reopened some keys, each as a whole: called again, it goes on with the others.
    pub async fn again_since(&self, since: Timestamp) -> Result<u64, Error> {
        let mut all = 0;
        // Keys that workers have done again meanwhile are not reopened a second time.
        let until = self.db.now().await?;
        while let Some(sent) = self.again_some_keys(since, until).await? {
            all += sent;
        }
        Ok(all)
    }

    /// Reopens the next keys that have items done between `since` and `until`, each with all that was done since `since`. Returns
    /// how many items that are, or none if there are no more keys. Workers lose the items of these keys that they have in flight: those
    /// follow the reopened ones, and are done again.
    ///
    /// One transaction reopens a key, however many items it has. If some of its items were still done while others are open
    /// again, an item behind the done ones would overtake those that are open.
    pub async fn again_some_keys(&self, since: Timestamp, until: Timestamp) -> Result<Option<u64>, Error> {
        // A worker that changes the same items at this moment may be the other side of a deadlock.
        db::retrying(Error::is_conflict, || self.try_again_some_keys(since, until)).await
    }

    async fn try_again_some_keys(&self, since: Timestamp, until: Timestamp) -> Result<Option<u64>, Error> {
        let (since, until) = (since.as_millis(), until.as_millis());
        let mut tx = self.db.begin().await?;
        let keys = async {
            let text = AssertSqlSafe(self.operator.keys_done_since.clone());
            let keys: Vec<(i64,)> = db::on!(tx, connection => {
                let query = sqlx::query_as(text).bind(since).bind(until).bind(AGAIN_AT_ONCE as i64);
                query.fetch_all(connection).await?
            });
            let keys: Vec<i64> = keys.into_iter().map(|(key,)| key).collect();
            if self.is_ordered {
                // Before the done ones are read: an item that a worker has just finished is among them.
                let (text, padding) = self.operator.take_back.of(keys.len());
                db::on!(tx, connection => {
                    bind_list!(sqlx::query(text), keys, padding).execute(connection).await?;
                });
            }
            let (text, padding) = self.operator.done_of_keys.of(keys.len());
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
        let mut sent = 0;
        for numbers in numbers.chunks(AGAIN_AT_ONCE) {
            let (text, padding) = self.operator.again.of(numbers.len());
            // Each statement has its own time: a key may have very many items.
            let sending = async {
                Ok::<_, Error>(db::on!(tx, connection => {
                    bind_list!(sqlx::query(text), numbers, padding).execute(connection).await?.rows_affected()
                }))
            };
            sent += self.db.bounded(sending).await?;
        }
        tx.wake_after_commit(&self.pushed);
        self.db.bounded(tx.commit()).await?;
        Ok(Some(sent))
    }

    /// Items that were done at this time or later and come after a number, in their order.
    pub async fn done_after(&self, number: i64, since: Timestamp, limit: u32) -> Result<Vec<Entry>, Error> {
        let text = AssertSqlSafe(self.operator.done_after.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<EntryRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(text).bind(number).bind(since.as_millis()).bind(i64::from(limit));
                query.fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(entry).collect())
        };
        self.db.bounded(reading).await
    }

    /// Items that were done before another one, the last first; from the last one on if none is named.
    pub async fn done_before(
        &self,
        before: Option<(Timestamp, i64)>,
        limit: u32,
    ) -> Result<Vec<Entry>, Error> {
        let (due, number) = before.map_or((i64::MAX, i64::MAX), |(due, number)| (due.as_millis(), number));
        let text = AssertSqlSafe(self.operator.done_before.clone());
        let reading = async {
            let mut connection = self.db.connection().await?;
            let rows: Vec<EntryRow> = db::on!(connection, raw => {
                let query = sqlx::query_as(text).bind(due).bind(due).bind(number).bind(i64::from(limit));
                query.fetch_all(raw).await?
            });
            Ok(rows.into_iter().map(entry).collect())
        };
        self.db.bounded(reading).await
    }
}

fn entry(row: EntryRow) -> Entry {
    Entry {
        number: row.id,
        id: uuid(&row.item_id),
        user: uuid(&row.user_id),
        key: row.item_key,
        state: State::of(row.state, row.holder.is_some()),
        created: Timestamp::from_millis(row.created_at),
        due: Timestamp::from_millis(row.due_at),
        attempts: row.attempts.unsigned_abs(),
        lease: row.lease,
        holder: row.holder.map(|holder| uuid(&holder)),
        cause: row.cause,
        payload: row.payload,
    }
}

//! The queue: pushing items, and its shared state.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Timestamp};
use db::{Db, Error, Tx, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bulk::BulkStatements;
use crate::claim::ClaimStatements;
use crate::decide::DecideStatements;
use crate::finish::FinishStatements;
use crate::item::{DONE, FAILED, OPEN, SKIPPED, key_hash};
use crate::local::LocalWorker;
use crate::operator::OperatorStatements;
use crate::retention::RetentionStatements;
use crate::statement::StatementBuilder;
use crate::{Config, FailureHook, Item, Metrics, NewItem, SplitItem, Unordered};

/// The lease number, and the number of attempts, of an item that was claimed at its push.
pub(crate) const CLAIMED_AT_PUSH: u32 = 1;

/// A work queue in a table of its own, created by [`mysql_table!`](crate::mysql_table) and [`sqlite_table!`](crate::sqlite_table).
/// Cheap to clone; clones share state.
#[derive(Clone)]
pub struct WorkQueue(Arc<Inner>);

/// The state that clones of a queue share.
#[derive(Clone, Debug)]
pub struct Inner {
    pub(crate) table: &'static str,
    pub(crate) db: Db,
    pub(crate) config: Config,
    pub(crate) metrics: Metrics,
    clock: Clock,
    /// Whether the items of a key are handled one after the other.
    pub(crate) is_ordered: bool,
    pub(crate) failure_hook: Option<Arc<dyn FailureHook>>,
    /// Notified when this process has pushed an item.
    pub(crate) pushed: Arc<Notify>,
    pub(crate) local: LocalWorker,
    pub(crate) push: Arc<str>,
    /// As `push`, but leaves out rows whose id exists.
    push_missing: Arc<str>,
    /// Selects those keys of a list that have unfinished items.
    unfinished: Arc<str>,
    pub(crate) claim: ClaimStatements,
    pub(crate) finish: FinishStatements,
    pub(crate) retention: RetentionStatements,
    pub(crate) operator: OperatorStatements,
    pub(crate) decide: DecideStatements,
    pub(crate) bulk: BulkStatements,
}

impl WorkQueue {
    /// Creates a queue on `table`, which is also its name. `clock` dates only items that were claimed at their push; everything else
    /// uses the store's clock.
    pub fn new(table: &'static str, db: Db, config: Config, metrics: Metrics, clock: Clock) -> Self {
        let text = StatementBuilder::new(table, db.dialect());
        let max = config.max_claimed();
        let columns = "(item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, holder, created_at, payload)";
        Self(Arc::new(Inner {
            table,
            push: text.fixed(&format!("INSERT INTO {{table}} {columns}")),
            push_missing: text.fixed(&format!("INSERT {{or_ignore}} INTO {{table}} {columns}")),
            unfinished: text.fixed(
                "SELECT DISTINCT key_hash FROM {table} {by_key} WHERE key_hash IN ({list}) AND state IN (0, 2)",
            ),
            claim: ClaimStatements::new(&text, max, true),
            finish: FinishStatements::new(&text, max),
            retention: RetentionStatements::new(&text),
            operator: OperatorStatements::new(&text),
            decide: DecideStatements::new(&text),
            bulk: BulkStatements::new(&text),
            db,
            config,
            metrics,
            clock,
            is_ordered: true,
            failure_hook: None,
            pushed: Arc::default(),
            local: LocalWorker::default(),
        }))
    }

    /// Turns the queue into an unordered one. Its items are independent of each other, and a failed item blocks nothing. The key
    /// only groups items, for example by destination.
    ///
    /// Existing clones stay ordered. Using one table both ordered and unordered is a mistake.
    #[must_use]
    pub fn unordered(mut self) -> Unordered {
        let inner = Arc::make_mut(&mut self.0);
        let text = StatementBuilder::new(inner.table, inner.db.dialect());
        inner.claim = ClaimStatements::new(&text, inner.config.max_claimed(), false);
        inner.is_ordered = false;
        Unordered::new(self)
    }

    /// Adds a hook that runs in the transaction that marks an item as failed. An item fails when its handler says so, when its
    /// attempts are used up, or when its last worker never reported an outcome. Existing clones do not get the hook.
    #[must_use]
    pub fn with_failure_hook(mut self, hook: Arc<dyn FailureHook>) -> Self {
        Arc::make_mut(&mut self.0).failure_hook = Some(hook);
        self
    }

    /// Adds items to the caller's transaction. Its commit writes them and wakes a worker of this process.
    ///
    /// In an ordered queue, callers that push the same key must exclude each other until the commit.
    pub fn push(&self, tx: &mut Tx, items: &[NewItem<'_>]) {
        if items.is_empty() {
            // Do not wake a worker without work.
            return;
        }
        let rows = items.iter().map(|item| row(item, Value::Now, 0, Value::Null));
        tx.insert_at_commit(&self.push, rows);
        tx.wake_after_commit(&self.pushed);
    }

    /// Adds items whose keys have nothing unfinished, so that this process can handle them itself right after the commit, without a
    /// claim. The caller must know that and must exclude other pushes of the same keys until the commit.
    ///
    /// If this process runs no worker, this is an ordinary [`push`](Self::push). Several items of one key must be passed in one
    /// call, in their order.
    pub fn push_local(&self, tx: &mut Tx, items: &[NewItem<'_>]) {
        if items.is_empty() {
            return;
        }
        let Some((holder, sender)) = self.local.sender() else { return self.push(tx, items) };
        let until = Value::After(self.config.lease);
        let rows = items.iter().map(|item| row(item, until, CLAIMED_AT_PUSH, holder.as_uuid().into()));
        tx.insert_at_commit(&self.push, rows);
        let now = self.clock.now();
        let items = items.iter().map(|item| claimed_at_push(item, now)).collect();
        tx.after_commit(move || sender.send(items));
    }

    /// Adds a part of a split item to the caller's transaction, unless its id is in the queue already. The part inherits the lease
    /// number and the age of the item, so [`Item::attempt_may_be_older_than`] knows that it may have been attempted before.
    pub(crate) fn push_split_item(&self, tx: &mut Tx, item: &Item, part: &SplitItem) {
        let row = [
            (&part.id).into(),
            (&item.user).into(),
            part.key.as_str().into(),
            key_hash(&part.key).into(),
            if part.is_done { DONE } else { OPEN }.into(),
            Value::Now,
            Value::Integer(0),
            item.lease.into(),
            Value::Null,
            item.created.into(),
            part.payload.as_slice().into(),
        ];
        tx.insert_at_commit(&self.push_missing, [row]);
        tx.wake_after_commit(&self.pushed);
    }

    /// Returns the hash by which statements refer to a key.
    pub fn key_hash(key: &str) -> i64 {
        key_hash(key)
    }

    /// Returns those of these [key hashes](Self::key_hash) that have unfinished items, with one query in the caller's transaction.
    /// `keys` must not be empty.
    pub async fn unfinished_in(&self, tx: &mut Tx, keys: &[i64]) -> Result<HashSet<i64>, Error> {
        let (text, padding) = db::list_text(&self.unfinished, keys.len());
        let unfinished: Vec<i64> = db::on!(tx, connection => {
            db::bind_list!(sqlx::query_scalar(text), keys, padding).fetch_all(connection).await?
        });
        Ok(unfinished.into_iter().collect())
    }

    /// Wakes a worker of this process.
    pub fn wake(&self) {
        self.pushed.notify_one();
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the name of the table.
    pub fn name(&self) -> &'static str {
        self.table
    }
}

impl std::ops::Deref for WorkQueue {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("table", &self.table).finish_non_exhaustive()
    }
}

/// Returns the row to insert for an item. `claims` is its initial lease number and number of attempts.
pub(crate) fn row<'a>(
    item: &'a NewItem<'_>,
    due_at: Value<'a>,
    claims: u32,
    holder: Value<'a>,
) -> [Value<'a>; 11] {
    [
        (&item.id).into(),
        (&item.user).into(),
        item.key.into(),
        key_hash(item.key).into(),
        OPEN.into(),
        due_at,
        Value::Integer(claims.into()),
        Value::Integer(claims.into()),
        holder,
        Value::Now,
        item.payload.into(),
    ]
}

/// Returns an item that was claimed at its push, in the form in which its worker receives it.
fn claimed_at_push(item: &NewItem<'_>, now: Timestamp) -> Item {
    Item {
        number: Item::NO_NUMBER,
        id: item.id,
        user: item.user,
        key: item.key.to_owned(),
        payload: item.payload.to_vec(),
        attempts: CLAIMED_AT_PUSH,
        // The row gets the store's time. Reading it back would cost one query per item.
        created: now,
        age: Duration::ZERO,
        claimed: Instant::now(),
        lease: CLAIMED_AT_PUSH.into(),
        key_hash: key_hash(item.key),
    }
}

/// Returns whether the next item of the key may be claimed after an item in this state.
pub(crate) const fn is_finished(state: i32) -> bool {
    match state {
        DONE | SKIPPED => true,
        OPEN | FAILED => false,
        _ => false,
    }
}

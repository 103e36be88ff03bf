//! A queue.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Timestamp};
use db::{Db, Error, Tx, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::choose::ChooseTexts;
use crate::claim::ClaimTexts;
use crate::decide::DecideTexts;
use crate::finish::FinishTexts;
use crate::home::Home;
use crate::item::{DONE, FAILED, OPEN, SKIPPED, key_hash};
use crate::keep::KeepTexts;
use crate::operator::OperatorTexts;
use crate::statement::Text;
use crate::{Config, Item, Metrics, New, OnFailed, Part, Unordered};

/// The lease number, and the attempts, of an item that its pusher has claimed.
pub(crate) const BORN_CLAIMED: u32 = 1;

/// A queue in a table of its own, which [`mysql_table!`](crate::mysql_table) and [`sqlite_table!`](crate::sqlite_table) describe.
/// Clones are the same queue.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

/// What the clones of a queue share.
#[derive(Clone, Debug)]
pub struct Inner {
    pub(crate) table: &'static str,
    pub(crate) db: Db,
    pub(crate) config: Config,
    pub(crate) metrics: Metrics,
    clock: Clock,
    /// Whether the items of a key are done one after the other.
    pub(crate) is_ordered: bool,
    pub(crate) on_failed: Option<Arc<dyn OnFailed>>,
    /// Something was pushed in this process.
    pub(crate) pushed: Arc<Notify>,
    pub(crate) home: Home,
    pub(crate) push: Arc<str>,
    /// As `push`; rows whose id is there already are left out.
    push_missing: Arc<str>,
    /// The keys of a list of which something is unfinished.
    unfinished: Arc<str>,
    pub(crate) claim: ClaimTexts,
    pub(crate) finish: FinishTexts,
    pub(crate) keep: KeepTexts,
    pub(crate) operator: OperatorTexts,
    pub(crate) decide: DecideTexts,
    pub(crate) choose: ChooseTexts,
}

impl Queue {
    /// Makes the queue in a table, which is also its name. The clock dates items that this process does without a claim; all else
    /// is by the store's clock.
    pub fn new(table: &'static str, db: Db, config: Config, metrics: Metrics, clock: Clock) -> Self {
        let text = Text::new(table, db.dialect());
        let max = config.max_claimed();
        let columns = "(item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, holder, created_at, payload)";
        Self(Arc::new(Inner {
            table,
            push: text.fixed(&format!("INSERT INTO {{table}} {columns}")),
            push_missing: text.fixed(&format!("INSERT {{or_ignore}} INTO {{table}} {columns}")),
            unfinished: text.fixed(
                "SELECT DISTINCT key_hash FROM {table} {by_key} WHERE key_hash IN ({list}) AND state IN (0, 2)",
            ),
            claim: ClaimTexts::new(&text, max, true),
            finish: FinishTexts::new(&text, max),
            keep: KeepTexts::new(&text),
            operator: OperatorTexts::new(&text),
            decide: DecideTexts::new(&text),
            choose: ChooseTexts::new(&text),
            db,
            config,
            metrics,
            clock,
            is_ordered: true,
            on_failed: None,
            pushed: Arc::default(),
            home: Home::default(),
        }))
    }

    /// The queue without any order: its items are independent of each other, whatever their keys, and one that has failed holds
    /// up nobody. The key is what groups them, a destination. Clones that were made before keep their order: to work on one
    /// table with and without is a mistake.
    #[must_use]
    pub fn unordered(mut self) -> Unordered {
        let inner = Arc::make_mut(&mut self.0);
        let text = Text::new(inner.table, inner.db.dialect());
        inner.claim = ClaimTexts::new(&text, inner.config.max_claimed(), false);
        inner.is_ordered = false;
        Unordered::new(self)
    }

    /// The queue with something that is written whenever items fail for good, in the very transaction that marks them: because
    /// their worker says so, because their attempts are used up, or because the last worker never said anything. Clones that
    /// were made before do without it.
    #[must_use]
    pub fn on_failed(mut self, hook: Arc<dyn OnFailed>) -> Self {
        Arc::make_mut(&mut self.0).on_failed = Some(hook);
        self
    }

    /// Adds items to the caller's transaction. They are written by its commit, which wakes a worker of this process.
    ///
    /// Whoever pushes items of the same key must exclude each other until then.
    pub fn push(&self, tx: &mut Tx, items: &[New<'_>]) {
        if items.is_empty() {
            // Nobody is woken for nothing.
            return;
        }
        let rows = items.iter().map(|item| row(item, Value::Now, 0, Value::Null));
        tx.insert_at_commit(&self.push, rows);
        tx.wake_after_commit(&self.pushed);
    }

    /// Adds items of whose keys nothing is unfinished, as the caller knows who excludes others that push the same keys: the next
    /// in line. Where this process has a worker they are its own from the start, and it does them right after the commit, without
    /// a claim; else they are pushed as any others.
    ///
    /// Several of one key, in their order, are pushed by one call.
    pub fn push_next(&self, tx: &mut Tx, items: &[New<'_>]) {
        if items.is_empty() {
            return;
        }
        let Some((holder, hand_over)) = self.home.worker() else { return self.push(tx, items) };
        let until = Value::After(self.config.lease);
        let rows = items.iter().map(|item| row(item, until, BORN_CLAIMED, holder.as_uuid().into()));
        tx.insert_at_commit(&self.push, rows);
        let now = self.clock.now();
        let items = items.iter().map(|item| born_claimed(item, now)).collect();
        tx.after_commit(move || hand_over.give(items));
    }

    /// Adds a part of an item, unless it is in the queue already, to the caller's transaction. It has the lease number and the age
    /// of the item, by which [`Item::may_have_been_done`] tells that it was tried before.
    pub(crate) fn push_part(&self, tx: &mut Tx, item: &Item, part: &Part) {
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

    /// What stands for a key in statements.
    pub fn key_number(key: &str) -> i64 {
        key_hash(key)
    }

    /// Returns those of these [numbers of keys](Self::key_number) of which something is unfinished, in one query of the caller's
    /// transaction. `keys` is not empty.
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

    /// What the table is called.
    pub fn name(&self) -> &'static str {
        self.table
    }
}

impl std::ops::Deref for Queue {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A row that is to be pushed, claimed so often before.
pub(crate) fn row<'a>(
    item: &'a New<'_>,
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

/// Returns an item that was claimed with its push, as its worker gets it.
fn born_claimed(item: &New<'_>, now: Timestamp) -> Item {
    Item {
        number: Item::NO_NUMBER,
        id: item.id,
        user: item.user,
        key: item.key.to_owned(),
        payload: item.payload.to_vec(),
        attempts: BORN_CLAIMED,
        // The row gets the store's own time, which is not read back: one query less per item.
        created: now,
        age: Duration::ZERO,
        claimed: Instant::now(),
        lease: BORN_CLAIMED.into(),
        key_hash: key_hash(item.key),
    }
}

/// Whether an item in this state lets the next one of its key pass.
pub(crate) const fn is_finished(state: i32) -> bool {
    match state {
        DONE | SKIPPED => true,
        OPEN | FAILED => false,
        _ => false,
    }
}

//! Claiming due items.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::id::ProcessId;
use db::{Error, ListStatement, Tx, bind_list};
use sqlx::AssertSqlSafe;
use tokio::time::Instant;

use crate::item::{FAILED, SKIPPED, uuid};
use crate::queue::{WorkQueue, is_finished};
use crate::statement::StatementBuilder;
use crate::{Item, State};

/// When to recheck an item whose predecessor waits for an operator. An operator's decision unblocks it at once.
const RECHECK_BLOCKED: Duration = Duration::from_secs(60);
/// When to recheck an item whose predecessor is claimed by a worker that may be dead.
const RECHECK_SILENT: Duration = Duration::from_secs(1);
/// After this time since its claim or last renewal, a worker no longer counts as about to finish. At most a quarter of the lease: a
/// worker renews after a third of it, so with a short lease it would otherwise never count as slow.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// The longest wait, whatever a remote destination requests. The store could not add a longer one to its time.
const MAX_WAIT: Duration = Duration::from_secs(10 * 366 * 86_400);
/// The cause of an item that failed because the lease of its last attempt expired.
const NO_REPORT: &str = "attempts are used up; the last worker reported no outcome";

/// Claimed items, held until the lease ends.
#[derive(Debug)]
pub struct Claim {
    /// In the order of their numbers, which is also the order within each key.
    pub items: Vec<Item>,
    /// When the lease ends at the earliest, unless it is renewed.
    pub until: Instant,
    /// Whether more items may be due.
    pub has_more: bool,
    /// How many due items wait for a predecessor that another worker is handling.
    pub waiting: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct ClaimStatements {
    due: Arc<str>,
    any_due: Arc<str>,
    read: ListStatement,
    take: ListStatement,
    defer: ListStatement,
    fail: ListStatement,
}

db::row! {
    struct DueRow {
        id: i64,
        item_id: Vec<u8>,
        user_id: Vec<u8>,
        item_key: String,
        key_hash: i64,
        payload: Vec<u8>,
        attempts: i32,
        lease: i64,
        created_at: i64,
        due_at: i64,
        /// The item before it: see [`Predecessor::parse`].
        predecessor: Option<String>,
        /// The store's clock.
        read_at: i64,
    }
}

/// The previous item of the same key that was not skipped.
struct Predecessor {
    number: i64,
    state: State,
    is_finished: bool,
    due_at: i64,
}

impl ClaimStatements {
    pub(crate) fn new(text: &StatementBuilder, max: usize, is_ordered: bool) -> Self {
        // A skipped item proves nothing about the ones before it: it may have been skipped while it waited for them.
        let predecessor = format!(
            "(SELECT p.id || ':' || p.state || ':' || (p.holder IS NOT NULL) || ':' || p.due_at FROM {{table}} p \
             WHERE p.key_hash = c.key_hash AND p.id < c.id AND p.state <> {SKIPPED} ORDER BY p.id DESC LIMIT 1)"
        );
        let predecessor = if is_ordered { predecessor.as_str() } else { "NULL" };
        Self {
            due: text.fixed(
                "SELECT id FROM {table} {by_state} WHERE state = 0 AND due_at <= {now} ORDER BY due_at, id LIMIT ? {skip_locked}",
            ),
            any_due: text.fixed(
                "SELECT id FROM {table} {by_state} WHERE state = 0 AND due_at <= {now} ORDER BY due_at, id LIMIT 1",
            ),
            // A separate statement after the items are locked: an older snapshot of the table might miss a predecessor that was
            // committed a moment ago.
            read: text.list(
                &format!(
                    "SELECT c.id, c.item_id, c.user_id, c.item_key, c.key_hash, c.payload, c.attempts, c.lease, c.created_at, c.due_at, \
                     {predecessor} AS predecessor, {{now}} AS read_at FROM {{table}} c WHERE c.id IN ({{list}}) ORDER BY c.id"
                ),
                max,
            ),
            take: text.list(
                "UPDATE {table} SET holder = ?, lease = lease + 1, attempts = attempts + 1, due_at = {now} + ? \
                 WHERE id IN ({list})",
                max,
            ),
            defer: text.list("UPDATE {table} SET due_at = ?, holder = NULL WHERE id IN ({list})", max),
            fail: text.list(
                &format!(
                    "UPDATE {{table}} SET state = {FAILED}, due_at = {{now}}, holder = NULL, lease = lease + 1, cause = ? \
                     WHERE id IN ({{list}})"
                ),
                max,
            ),
        }
    }
}

impl WorkQueue {
    /// Returns whether an item is due. Cheaper than a claim, and takes no locks.
    pub async fn has_due(&self) -> Result<bool, Error> {
        let reading = async {
            let mut connection = self.db.connection().await?;
            let text = AssertSqlSafe(self.claim.any_due.clone());
            let found: Option<(i64,)> =
                db::on!(connection, raw => sqlx::query_as(text).fetch_optional(raw).await?);
            Ok(found.is_some())
        };
        self.db.bounded(reading).await
    }

    /// Claims up to a batch of due items. In an ordered queue it claims only items whose predecessors are finished or claimed with
    /// them, and defers the others.
    pub async fn claim(&self, holder: ProcessId) -> Result<Claim, Error> {
        self.claim_some(holder, self.config.batch).await
    }

    /// Claims at most `max` items.
    pub(crate) async fn claim_some(&self, holder: ProcessId, max: u32) -> Result<Claim, Error> {
        let began = Instant::now();
        let until = began + self.config.lease;
        let claimed = self.db.bounded(self.claim_once(holder, max)).await;
        let (items, has_more, waiting) = claimed?;
        if !items.is_empty() {
            self.metrics.claimed(items.len(), began.elapsed());
        }
        Ok(Claim { items, until, has_more, waiting })
    }

    async fn claim_once(&self, holder: ProcessId, max: u32) -> Result<(Vec<Item>, bool, usize), Error> {
        let mut tx = self.db.begin().await?;
        let due = AssertSqlSafe(self.claim.due.clone());
        let numbers: Vec<(i64,)> = db::on!(tx, connection => {
            sqlx::query_as(due).bind(i64::from(max)).fetch_all(connection).await?
        });
        let numbers: Vec<i64> = numbers.into_iter().map(|(number,)| number).collect();
        if numbers.is_empty() {
            tx.rollback().await?;
            return Ok((Vec::new(), false, 0));
        }
        let has_more = numbers.len() >= max as usize;
        let (text, padding) = self.claim.read.for_length(numbers.len());
        let rows: Vec<DueRow> = db::on!(tx, connection => {
            bind_list!(sqlx::query_as(text), numbers, padding).fetch_all(connection).await?
        });
        let ClaimPlan { take, defer, fail, waiting } = self.plan(rows);
        if take.is_empty() && defer.is_empty() && fail.is_empty() {
            tx.rollback().await?;
            return Ok((Vec::new(), has_more, waiting));
        }
        self.take(&mut tx, holder, &take).await?;
        for (due_at, numbers) in &defer {
            let (text, padding) = self.claim.defer.for_length(numbers.len());
            db::on!(tx, connection => {
                bind_list!(sqlx::query(text).bind(due_at), numbers, padding).execute(connection).await?;
            });
        }
        if !fail.is_empty() {
            self.fail(&mut tx, &fail).await?;
        }
        tx.commit().await?;
        self.metrics.deferred(defer.values().map(Vec::len).sum());
        self.metrics.out_of_attempts(fail.len());
        self.failures_committed(&fail, NO_REPORT);
        Ok((take, has_more, waiting))
    }

    async fn take(&self, tx: &mut Tx, holder: ProcessId, items: &[Item]) -> Result<(), Error> {
        if items.is_empty() {
            return Ok(());
        }
        let numbers: Vec<i64> = items.iter().map(|item| item.number).collect();
        let (text, padding) = self.claim.take.for_length(numbers.len());
        let lease = millis(self.config.lease);
        db::on!(tx, connection => {
            let query = sqlx::query(text).bind(&holder.as_uuid().as_bytes()[..]).bind(lease);
            bind_list!(query, numbers, padding).execute(connection).await?;
        });
        Ok(())
    }

    /// Marks items whose attempts are used up as failed.
    async fn fail(&self, tx: &mut Tx, items: &[Item]) -> Result<(), Error> {
        let numbers: Vec<i64> = items.iter().map(|item| item.number).collect();
        let (text, padding) = self.claim.fail.for_length(numbers.len());
        db::on!(tx, connection => {
            bind_list!(sqlx::query(text).bind(NO_REPORT), numbers, padding).execute(connection).await?;
        });
        self.record_failures(tx, items, NO_REPORT).await?;
        Ok(())
    }

    /// Decides which due items to claim, to defer and to fail.
    fn plan(&self, rows: Vec<DueRow>) -> ClaimPlan {
        let mut plan = ClaimPlan::default();
        let mut taken = HashSet::new();
        let mut deferred: HashMap<i64, i64> = HashMap::new();
        for row in rows {
            let (number, due_at, now) = (row.id, row.due_at, row.read_at);
            let predecessor = row.predecessor.as_deref().and_then(Predecessor::parse);
            let blocking = predecessor.filter(|item| !item.is_finished && !taken.contains(&item.number));
            let age = now.saturating_sub(row.created_at).try_into().unwrap_or_default();
            let mut item = Item {
                number,
                id: uuid(&row.item_id),
                user: uuid(&row.user_id),
                key: row.item_key,
                payload: row.payload,
                attempts: u32::try_from(row.attempts).unwrap_or_default(),
                created: Timestamp::from_millis(row.created_at),
                age: Duration::from_millis(age),
                claimed: Instant::now(),
                lease: row.lease,
                key_hash: row.key_hash,
            };
            if let Some(blocking) = blocking {
                let with_it = deferred.get(&blocking.number).copied();
                match with_it.or_else(|| blocking.recheck_at(due_at, now, self.config.lease)) {
                    None => plan.waiting += 1,
                    Some(time) => {
                        deferred.insert(number, time);
                        plan.defer.entry(time).or_default().push(number);
                    }
                }
            } else if item.attempts >= self.config.max_attempts {
                plan.fail.push(item);
            } else {
                item.attempts += 1;
                item.lease += 1;
                taken.insert(number);
                plan.take.push(item);
            }
        }
        plan
    }
}

/// What one claim does with the due items.
#[derive(Default)]
struct ClaimPlan {
    take: Vec<Item>,
    /// By the time of the recheck.
    defer: BTreeMap<i64, Vec<i64>>,
    fail: Vec<Item>,
    /// How many stay where they are, because their predecessor is about to finish.
    waiting: usize,
}

impl Predecessor {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':').map(|part| part.parse::<i64>().ok());
        let mut next = || parts.next().flatten();
        let (number, state, is_claimed, due_at) = (next()?, next()?, next()?, next()?);
        let state = i32::try_from(state).ok()?;
        let is_finished = is_finished(state);
        Some(Self { number, state: State::from_columns(state, is_claimed != 0), is_finished, due_at })
    }

    /// Returns when to recheck the item behind this one, which is due at `due_at`. Returns none if this one is about to finish:
    /// deferring costs a write, and keeps the worker of the key from continuing with the next item.
    fn recheck_at(&self, due_at: i64, now: i64, lease: Duration) -> Option<i64> {
        match self.state {
            State::Failed => Some(now + millis(RECHECK_BLOCKED)),
            // Defer it to this one's turn, or the waiting items would hide this one. At most a minute: an operator may change that.
            State::Pending if self.due_at > due_at => Some(self.due_at.min(now + millis(RECHECK_BLOCKED))),
            // Otherwise many items of one key, at the front of the line, would hide all others until the lease ends.
            State::InFlight if now - (self.due_at - millis(lease)) > millis(SILENT_AFTER.min(lease / 4)) => {
                Some(now + millis(RECHECK_SILENT))
            }
            _ => None,
        }
    }
}

/// Converts a wait to the store's milliseconds, at most [`MAX_WAIT`].
pub(crate) fn millis(duration: Duration) -> i64 {
    duration.min(MAX_WAIT).as_millis().try_into().unwrap_or(i64::MAX)
}

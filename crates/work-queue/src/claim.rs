//! Claiming items.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::id::ProcessId;
use db::{Error, ListStatement, Tx, bind_list};
use sqlx::AssertSqlSafe;
use tokio::time::Instant;

use crate::item::{FAILED, SKIPPED, uuid};
use crate::queue::{Queue, is_finished};
use crate::statement::Text;
use crate::{Item, State};

/// When to look again at an item whose predecessor waits for an operator. Whoever lets it go on does not wait for this.
const BEHIND_FAILED: Duration = Duration::from_secs(60);
/// When to look again at an item whose predecessor is claimed by somebody who may be dead.
const BEHIND_SILENT: Duration = Duration::from_secs(1);
/// For how long somebody at work is taken to be alive and soon done. Less if the lease is short: whoever renews it more often
/// than this would never make way, however long they take.
const SILENT: Duration = Duration::from_secs(2);
/// Nobody waits for longer, whatever somebody far away has asked for. The store could not add it to its time.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);
/// Why an item has failed whose last lease just ended.
const NEVER_SAID: &str = "attempts are used up; the last worker did not say what came of it";

/// Items that are ours until the lease ends.
#[derive(Debug)]
pub struct Claim {
    /// In the order of their numbers, which is the order of each key where there is one.
    pub items: Vec<Item>,
    /// When the lease ends at the earliest, unless it is renewed.
    pub until: Instant,
    /// Whether there may be more.
    pub more: bool,
    /// How many are due and wait for somebody who is at work on the one before them.
    pub behind: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct ClaimTexts {
    due: Arc<str>,
    any_due: Arc<str>,
    read: ListStatement,
    take: ListStatement,
    put_off: ListStatement,
    give_up: ListStatement,
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
        /// The item before it: see [`Before::parse`].
        before_it: Option<String>,
        /// The store's clock.
        read_at: i64,
    }
}

/// The item before another one of the same key.
struct Before {
    number: i64,
    state: State,
    is_finished: bool,
    due_at: i64,
}

impl ClaimTexts {
    pub(crate) fn new(text: &Text, max: usize, is_ordered: bool) -> Self {
        // What is skipped says nothing of those before it: it may have been skipped while it waited for them.
        let before = format!(
            "(SELECT p.id || ':' || p.state || ':' || (p.holder IS NOT NULL) || ':' || p.due_at FROM {{table}} p \
             WHERE p.key_hash = c.key_hash AND p.id < c.id AND p.state <> {SKIPPED} ORDER BY p.id DESC LIMIT 1)"
        );
        let before = if is_ordered { before.as_str() } else { "NULL" };
        Self {
            due: text.fixed(
                "SELECT id FROM {table} {by_state} WHERE state = 0 AND due_at <= {now} ORDER BY due_at, id LIMIT ? {skip_locked}",
            ),
            any_due: text.fixed(
                "SELECT id FROM {table} {by_state} WHERE state = 0 AND due_at <= {now} ORDER BY due_at, id LIMIT 1",
            ),
            // After the items are locked, as a statement of its own: an older view of the table might miss a predecessor that
            // was committed a moment ago.
            read: text.list(
                &format!(
                    "SELECT c.id, c.item_id, c.user_id, c.item_key, c.key_hash, c.payload, c.attempts, c.lease, c.created_at, c.due_at, \
                     {before} AS before_it, {{now}} AS read_at FROM {{table}} c WHERE c.id IN ({{list}}) ORDER BY c.id"
                ),
                max,
            ),
            take: text.list(
                "UPDATE {table} SET holder = ?, lease = lease + 1, attempts = attempts + 1, due_at = {now} + ? \
                 WHERE id IN ({list})",
                max,
            ),
            put_off: text.list("UPDATE {table} SET due_at = ?, holder = NULL WHERE id IN ({list})", max),
            give_up: text.list(
                &format!(
                    "UPDATE {{table}} SET state = {FAILED}, due_at = {{now}}, holder = NULL, lease = lease + 1, cause = ? \
                     WHERE id IN ({{list}})"
                ),
                max,
            ),
        }
    }
}

impl Queue {
    /// Whether there is something to claim. Cheaper than a claim, and takes no locks.
    pub async fn has_due(&self) -> Result<bool, Error> {
        let asking = async {
            let mut connection = self.db.connection().await?;
            let text = AssertSqlSafe(self.claim.any_due.clone());
            let found: Option<(i64,)> =
                db::on!(connection, raw => sqlx::query_as(text).fetch_optional(raw).await?);
            Ok(found.is_some())
        };
        self.db.bounded(asking).await
    }

    /// Claims up to a batch of items that are due and, where there is an order, first of their keys. Those that have to wait for
    /// another are put off.
    pub async fn claim(&self, holder: ProcessId) -> Result<Claim, Error> {
        self.claim_some(holder, self.config.batch).await
    }

    /// Claims fewer items than a batch.
    pub(crate) async fn claim_some(&self, holder: ProcessId, max: u32) -> Result<Claim, Error> {
        let began = Instant::now();
        let until = began + self.config.lease;
        let claimed = self.db.bounded(self.claim_once(holder, max)).await;
        let (items, more, behind) = claimed?;
        if !items.is_empty() {
            self.metrics.claimed(items.len(), began.elapsed());
        }
        Ok(Claim { items, until, more, behind })
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
        let more = numbers.len() >= max as usize;
        let (text, padding) = self.claim.read.of(numbers.len());
        let rows: Vec<DueRow> = db::on!(tx, connection => {
            bind_list!(sqlx::query_as(text), numbers, padding).fetch_all(connection).await?
        });
        let Sorted { take, put_off, give_up, behind } = self.sort(rows);
        if take.is_empty() && put_off.is_empty() && give_up.is_empty() {
            tx.rollback().await?;
            return Ok((Vec::new(), more, behind));
        }
        self.take(&mut tx, holder, &take).await?;
        for (due_at, numbers) in &put_off {
            let (text, padding) = self.claim.put_off.of(numbers.len());
            db::on!(tx, connection => {
                bind_list!(sqlx::query(text).bind(due_at), numbers, padding).execute(connection).await?;
            });
        }
        if !give_up.is_empty() {
            self.give_up(&mut tx, &give_up).await?;
        }
        tx.commit().await?;
        self.metrics.put_off(put_off.values().map(Vec::len).sum());
        self.metrics.gave_up(give_up.len());
        self.note_committed(&give_up, NEVER_SAID);
        Ok((take, more, behind))
    }

    async fn take(&self, tx: &mut Tx, holder: ProcessId, items: &[Item]) -> Result<(), Error> {
        if items.is_empty() {
            return Ok(());
        }
        let numbers: Vec<i64> = items.iter().map(|item| item.number).collect();
        let (text, padding) = self.claim.take.of(numbers.len());
        let lease = millis(self.config.lease);
        db::on!(tx, connection => {
            let query = sqlx::query(text).bind(&holder.as_uuid().as_bytes()[..]).bind(lease);
            bind_list!(query, numbers, padding).execute(connection).await?;
        });
        Ok(())
    }

    async fn give_up(&self, tx: &mut Tx, items: &[Item]) -> Result<(), Error> {
        let numbers: Vec<i64> = items.iter().map(|item| item.number).collect();
        let (text, padding) = self.claim.give_up.of(numbers.len());
        db::on!(tx, connection => {
            bind_list!(sqlx::query(text).bind(NEVER_SAID), numbers, padding).execute(connection).await?;
        });
        self.tell_failed(tx, items, NEVER_SAID).await?;
        Ok(())
    }

    /// Decides what becomes of items that are due.
    fn sort(&self, rows: Vec<DueRow>) -> Sorted {
        let mut sorted = Sorted::default();
        let mut taken = HashSet::new();
        let mut put_off: HashMap<i64, i64> = HashMap::new();
        for row in rows {
            let (number, due_at, now) = (row.id, row.due_at, row.read_at);
            let before = row.before_it.as_deref().and_then(Before::parse);
            let in_its_way = before.filter(|before| !before.is_finished && !taken.contains(&before.number));
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
            if let Some(before) = in_its_way {
                let with_it = put_off.get(&before.number).copied();
                match with_it.or_else(|| before.look_again(due_at, now, self.config.lease)) {
                    None => sorted.behind += 1,
                    Some(time) => {
                        put_off.insert(number, time);
                        sorted.put_off.entry(time).or_default().push(number);
                    }
                }
            } else if item.attempts >= self.config.max_attempts {
                sorted.give_up.push(item);
            } else {
                item.attempts += 1;
                item.lease += 1;
                taken.insert(number);
                sorted.take.push(item);
            }
        }
        sorted
    }
}

#[derive(Default)]
struct Sorted {
    take: Vec<Item>,
    /// By the time when they are looked at again.
    put_off: BTreeMap<i64, Vec<i64>>,
    give_up: Vec<Item>,
    /// How many stay where they are, since their turn comes in a moment.
    behind: usize,
}

impl Before {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':').map(|part| part.parse::<i64>().ok());
        let mut next = || parts.next().flatten();
        let (number, state, is_held, due_at) = (next()?, next()?, next()?, next()?);
        let state = i32::try_from(state).ok()?;
        let is_finished = is_finished(state);
        Some(Self { number, state: State::of(state, is_held != 0), is_finished, due_at })
    }

    /// When to look again at the item behind this one, which is due at a time; none if its turn comes in a moment. To be put off
    /// costs a write, and keeps whoever is at work on its key from going on with it.
    fn look_again(&self, due_at: i64, now: i64, lease: Duration) -> Option<i64> {
        match self.state {
            State::Failed => Some(now + millis(BEHIND_FAILED)),
            // Behind it in the line, or those who wait for it would hide it. Not for ever: an operator may change that.
            State::Pending if self.due_at > due_at => Some(self.due_at.min(now + millis(BEHIND_FAILED))),
            // Else many items of one key, at the front of the line, would hide all others until the lease ends.
            State::InFlight if now - (self.due_at - millis(lease)) > millis(SILENT.min(lease / 4)) => {
                Some(now + millis(BEHIND_SILENT))
            }
            _ => None,
        }
    }
}

/// A time from now on, as the store reckons it.
pub(crate) fn millis(duration: Duration) -> i64 {
    duration.min(LONGEST).as_millis().try_into().unwrap_or(i64::MAX)
}

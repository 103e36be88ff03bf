//! Recording the outcomes of claimed items, while their lease number is current.

use std::collections::BTreeMap;
use std::time::Duration;

use base::id::Uuid;
use db::{Error, ListStatement, Tx, bind_list};
use sqlx::AssertSqlSafe;
use tokio::time::Instant;

use crate::claim::millis;
use crate::item::{DONE, FAILED, HELD, OPEN};
use crate::queue::CLAIMED_AT_PUSH;
use crate::statement::{ItemRefs, MAX_IDS, StatementBuilder, bind_refs};
use crate::{Item, ItemOutcome, SplitItem, WorkQueue};

/// The longest cause that is stored, in characters.
const MAX_CAUSE: usize = 1_000;

/// How many items were recorded, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    pub done: usize,
    /// To be retried later.
    pub retry: usize,
    pub failed: usize,
    pub not_attempted: usize,
    /// Postponed without counting an attempt.
    pub postponed: usize,
    /// Not recorded: another worker has claimed the item, or an operator has decided about it.
    pub stale: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct FinishStatements {
    by_number: TransitionStatements,
    by_id: TransitionStatements,
    renew: ListStatement,
    save: ListStatement,
}

/// One statement for each transition.
#[derive(Clone, Debug)]
pub(crate) struct TransitionStatements {
    done: ListStatement,
    retry: ListStatement,
    failed: ListStatement,
    not_attempted: ListStatement,
    postponed: ListStatement,
    remove: ListStatement,
    /// Selects and locks the items whose lease is current.
    pub(crate) lock_current: ListStatement,
}

impl FinishStatements {
    pub(crate) fn new(text: &StatementBuilder, max: usize) -> Self {
        Self {
            by_number: TransitionStatements::new(text, "id", max),
            by_id: TransitionStatements::new(text, "item_id", MAX_IDS),
            save: text.list(
                &format!(
                    "UPDATE {{table}} SET payload = ?, attempts = 1, due_at = {{now}} + ? WHERE {}",
                    lease_is_current("id")
                ),
                1,
            ),
            renew: text.list(
                &format!("UPDATE {{table}} SET due_at = {{now}} + ? WHERE {}", lease_is_current("id")),
                max,
            ),
        }
    }

    pub(crate) const fn transitions(&self, refs: ItemRefs<'_>) -> &TransitionStatements {
        match refs {
            ItemRefs::Numbers(_) => &self.by_number,
            ItemRefs::Ids(_) => &self.by_id,
        }
    }
}

impl TransitionStatements {
    /// Builds the statements for items that are identified by `column`.
    fn new(text: &StatementBuilder, column: &str, max: usize) -> Self {
        let is_current = lease_is_current(column);
        let list = |set: &str| text.list(&format!("UPDATE {{table}} SET {set} WHERE {is_current}"), max);
        Self {
            done: list(&format!("state = {DONE}, due_at = {{now}}, holder = NULL, cause = NULL")),
            retry: list("due_at = {now} + ?, holder = NULL, cause = ?"),
            failed: list(&format!("state = {FAILED}, due_at = {{now}}, holder = NULL, cause = ?")),
            // Back to its place in line.
            not_attempted: list("due_at = created_at, attempts = attempts - 1, holder = NULL, cause = ?"),
            postponed: list("due_at = {now} + ?, attempts = attempts - 1, holder = NULL, cause = ?"),
            remove: text.list(&format!("DELETE FROM {{table}} WHERE {is_current}"), max),
            lock_current: text.list(
                &format!(
                    "SELECT id, item_id, user_id, item_key, key_hash, payload, attempts, created_at FROM {{table}} \
                     WHERE {is_current} {{for_update}}"
                ),
                max,
            ),
        }
    }
}

/// What to write for an item. Items with the same transition and lease number share a statement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Transition {
    Done,
    Retry { attempts: u32, at_least: Duration, cause: String },
    Failed(String),
    NotAttempted(String),
    Postponed { after: Duration, cause: String },
    Split(Vec<SplitItem>),
}

impl WorkQueue {
    /// Records the outcomes of claimed items in one transaction. Outcomes with an old lease number are counted as stale.
    pub async fn finish(&self, outcomes: &[(Item, ItemOutcome)]) -> Result<OutcomeCounts, Error> {
        let mut groups: BTreeMap<(Transition, i64), Vec<i64>> = BTreeMap::new();
        // Items that were claimed at their push.
        let mut by_id: BTreeMap<Transition, Vec<Uuid>> = BTreeMap::new();
        for (item, outcome) in outcomes {
            let transition = self.transition(item.attempts, outcome);
            if item.number == Item::NO_NUMBER {
                by_id.entry(transition).or_default().push(item.id);
            } else {
                groups.entry((transition, item.lease)).or_default().push(item.number);
            }
        }
        let by_id = by_id.iter().flat_map(|(transition, ids)| by_ids(transition, ids));
        let groups = groups
            .iter()
            .map(|((transition, lease), numbers)| (transition, *lease, ItemRefs::Numbers(numbers)));
        let finished = self.write(&groups.chain(by_id).collect::<Vec<_>>()).await?;
        if finished.not_attempted > 0 {
            self.wake();
        }
        Ok(finished)
    }

    /// Records one outcome for items that were [claimed at their push](crate::Unordered::push_claimed), unless their lease has expired
    /// and another worker has claimed them. Items that were not attempted can be claimed by any worker at once.
    pub async fn finish_claimed(&self, ids: &[Uuid], outcome: &ItemOutcome) -> Result<OutcomeCounts, Error> {
        let transition = self.transition(CLAIMED_AT_PUSH, outcome);
        let groups: Vec<(&Transition, i64, ItemRefs<'_>)> = by_ids(&transition, ids).collect();
        let finished = self.write(&groups).await?;
        if finished.not_attempted > 0 {
            self.wake();
        }
        Ok(finished)
    }

    /// Turns an outcome into a transition: a retry becomes a failure when the attempts are used up.
    fn transition(&self, attempts: u32, outcome: &ItemOutcome) -> Transition {
        let short = |cause: &str| cause.chars().take(MAX_CAUSE).collect();
        let retry = |at_least: Duration, cause: &str| {
            if attempts < self.config.max_attempts {
                Transition::Retry { attempts, at_least, cause: short(cause) }
            } else {
                Transition::Failed(short(cause))
            }
        };
        match outcome {
            ItemOutcome::Done => Transition::Done,
            ItemOutcome::Retry(cause) => retry(Duration::ZERO, cause),
            ItemOutcome::RetryAfter { after, cause } => retry(*after, cause),
            ItemOutcome::Failed(cause) => Transition::Failed(short(cause)),
            ItemOutcome::NotAttempted(cause) => Transition::NotAttempted(short(cause)),
            ItemOutcome::Postponed { after, cause } => {
                Transition::Postponed { after: *after, cause: short(cause) }
            }
            ItemOutcome::Split(parts) => Transition::Split(parts.clone()),
        }
    }

    /// Writes all groups in one transaction. Each group has the lease number of its items' claim.
    async fn write(&self, groups: &[(&Transition, i64, ItemRefs<'_>)]) -> Result<OutcomeCounts, Error> {
        if groups.is_empty() {
            return Ok(OutcomeCounts::default());
        }
        let writing = async {
            let (mut finished, mut failed) = (OutcomeCounts::default(), Vec::new());
            let mut tx = self.db.begin().await?;
            for (transition, lease, refs) in groups {
                let (changed, items) = self.write_group(&mut tx, transition, *lease, *refs).await?;
                if let Transition::Failed(cause) = transition {
                    failed.push((items, cause));
                }
                let count = match transition {
                    Transition::Done | Transition::Split(_) => &mut finished.done,
                    Transition::Retry { .. } => &mut finished.retry,
                    Transition::Failed(_) => &mut finished.failed,
                    Transition::NotAttempted(_) => &mut finished.not_attempted,
                    Transition::Postponed { .. } => &mut finished.postponed,
                };
                *count += changed;
                finished.stale += refs.len().saturating_sub(changed);
            }
            tx.commit().await?;
            Ok::<_, Error>((finished, failed))
        };
        let (finished, failed) = self.db.bounded(writing).await?;
        self.metrics.finished(&finished);
        for (items, cause) in failed {
            self.failures_committed(&items, cause);
        }
        Ok(finished)
    }

    /// Writes one group. Returns how many items changed, and the items if they had to be read.
    async fn write_group(
        &self,
        tx: &mut Tx,
        transition: &Transition,
        lease: i64,
        refs: ItemRefs<'_>,
    ) -> Result<(usize, Vec<Item>), Error> {
        let statements = self.finish.transitions(refs);
        let (statement, wait, cause) = match transition {
            Transition::Done => (&statements.done, None, None),
            Transition::Retry { attempts, at_least, cause } => {
                (&statements.retry, Some(self.config.retry.after(*attempts).max(*at_least)), Some(cause))
            }
            Transition::Failed(cause) => (&statements.failed, None, Some(cause)),
            Transition::NotAttempted(cause) => (&statements.not_attempted, None, Some(cause)),
            Transition::Postponed { after, cause } => (&statements.postponed, Some(*after), Some(cause)),
            Transition::Split(_) => (&statements.remove, None, None),
        };
        let is_read = match transition {
            Transition::Failed(_) => self.failure_hook.is_some(),
            Transition::Split(_) => true,
            _ => false,
        };
        let items = if is_read { self.lock_current(tx, refs, lease).await? } else { Vec::new() };
        if let Transition::Failed(cause) = transition {
            self.record_failures(tx, &items, cause).await?;
        }
        let (text, padding) = statement.for_length(refs.len());
        let changed = db::on!(tx, connection => {
            let mut query = sqlx::query(text);
            if let Some(wait) = wait {
                query = query.bind(millis(wait));
            }
            if let Some(cause) = cause {
                query = query.bind(cause);
            }
            bind_refs!(query.bind(lease), refs, padding).execute(connection).await?.rows_affected()
        });
        if let Transition::Split(parts) = transition {
            self.write_split_items(tx, &items, parts).await?;
        }
        Ok((changed.try_into().unwrap_or(usize::MAX), items))
    }

    /// Inserts the parts of items that were just removed.
    async fn write_split_items(&self, tx: &mut Tx, items: &[Item], parts: &[SplitItem]) -> Result<(), Error> {
        for item in items {
            for part in parts {
                self.push_split_item(tx, item, part);
                // One statement per part: together they may exceed the size of a message that the server accepts.
                tx.flush().await?;
            }
        }
        Ok(())
    }

    /// Renews the lease of those items that this worker still holds. Returns how many they are, and when the lease now ends.
    pub async fn renew(&self, items: &[Item]) -> Result<(usize, Instant), Error> {
        let mut groups: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        // The lease of an item that was claimed at its push is never renewed.
        for item in items.iter().filter(|item| item.number != Item::NO_NUMBER) {
            groups.entry(item.lease).or_default().push(item.number);
        }
        let until = Instant::now() + self.config.lease;
        let renewed = self.db.bounded(self.renew_groups(&groups, self.config.lease)).await?;
        Ok((renewed, until))
    }

    /// Saves progress: writes a new payload in the caller's transaction and renews the lease, so that another worker can resume from
    /// there. Returns false if this worker no longer holds the item; the caller must then roll back.
    ///
    /// Progress resets the stored number of attempts to one. The caller's copy of the item keeps the old number.
    pub async fn save(&self, tx: &mut Tx, item: &Item, payload: &[u8]) -> Result<bool, Error> {
        let numbers = [item.number];
        let (text, padding) = self.finish.save.for_length(numbers.len());
        let lease = millis(self.config.lease);
        let changed = db::on!(tx, connection => {
            let query = sqlx::query(text).bind(payload).bind(lease).bind(item.lease);
            bind_list!(query, numbers, padding).execute(connection).await?.rows_affected()
        });
        Ok(changed > 0)
    }

    /// Saves the progress of the step that was in flight when an operator [held](crate::Unordered::hold) the item. Returns false if the
    /// item was not held, or was resumed meanwhile.
    pub async fn save_held(&self, item: &Item, payload: &[u8]) -> Result<bool, Error> {
        const SAVE: &str = "UPDATE {table} SET payload = ? WHERE id = ? AND state = {HELD} AND lease = ?";
        let text = StatementBuilder::new(self.table, self.db.dialect()).fill(SAVE);
        let text = text.replace("{HELD}", &HELD.to_string());
        let saving = async {
            let mut tx = self.db.begin().await?;
            let changed = db::on!(tx, connection => {
                // The hold raised the number by one.
                let query = sqlx::query(AssertSqlSafe(text)).bind(payload).bind(item.number).bind(item.lease + 1);
                query.execute(connection).await?.rows_affected()
            });
            tx.commit().await?;
            Ok(changed > 0)
        };
        self.db.bounded(saving).await
    }

    async fn renew_groups(&self, groups: &BTreeMap<i64, Vec<i64>>, lease: Duration) -> Result<usize, Error> {
        let mut renewed = 0;
        let mut tx = self.db.begin().await?;
        for (number, items) in groups {
            let (text, padding) = self.finish.renew.for_length(items.len());
            renewed += db::on!(tx, connection => {
                let query = sqlx::query(text).bind(millis(lease)).bind(*number);
                bind_list!(query, items, padding).execute(connection).await?.rows_affected()
            });
        }
        tx.commit().await?;
        Ok(renewed.try_into().unwrap_or(usize::MAX))
    }
}

/// Groups items that were claimed at their push, at most [`MAX_IDS`] per statement.
fn by_ids<'a>(
    transition: &'a Transition,
    ids: &'a [Uuid],
) -> impl Iterator<Item = (&'a Transition, i64, ItemRefs<'a>)> {
    ids.chunks(MAX_IDS).map(move |ids| (transition, CLAIMED_AT_PUSH.into(), ItemRefs::Ids(ids)))
}

/// Returns the condition that items are open and have the given lease number.
fn lease_is_current(column: &str) -> String {
    format!("lease = ? AND state = {OPEN} AND {column} IN ({{list}})")
}

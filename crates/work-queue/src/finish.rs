//! Writing down what became of items, as long as they are ours.

use std::collections::BTreeMap;
use std::time::Duration;

use base::id::Uuid;
use db::{Error, ListStatement, Tx, bind_list};
use tokio::time::Instant;

use crate::claim::millis;
use crate::item::{DONE, FAILED, OPEN};
use crate::queue::BORN_CLAIMED;
use crate::statement::{IDS_AT_ONCE, Names, Text, bind_names};
use crate::{Item, Outcome, Part, Queue};

/// How long a cause may be.
const CAUSE: usize = 1_000;

/// What was written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    pub done: usize,
    /// To be tried again later.
    pub again: usize,
    pub failed: usize,
    pub not_tried: usize,
    /// Put off, without an attempt.
    pub later: usize,
    /// No longer ours: somebody else has claimed them, or an operator has decided on them.
    pub stale: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct FinishTexts {
    by_number: EndTexts,
    by_id: EndTexts,
    renew: ListStatement,
    save: ListStatement,
}

/// One for each end.
#[derive(Clone, Debug)]
pub(crate) struct EndTexts {
    done: ListStatement,
    again: ListStatement,
    failed: ListStatement,
    not_tried: ListStatement,
    later: ListStatement,
    remove: ListStatement,
    /// Those that are still ours, locked.
    pub(crate) ours: ListStatement,
}

impl FinishTexts {
    pub(crate) fn new(text: &Text, max: usize) -> Self {
        Self {
            by_number: EndTexts::new(text, "id", max),
            by_id: EndTexts::new(text, "item_id", IDS_AT_ONCE),
            save: text.list(
                &format!(
                    "UPDATE {{table}} SET payload = ?, attempts = 1, due_at = {{now}} + ? WHERE {}",
                    ours("id")
                ),
                1,
            ),
            renew: text.list(&format!("UPDATE {{table}} SET due_at = {{now}} + ? WHERE {}", ours("id")), max),
        }
    }

    pub(crate) const fn of(&self, names: Names<'_>) -> &EndTexts {
        match names {
            Names::Numbers(_) => &self.by_number,
            Names::Ids(_) => &self.by_id,
        }
    }
}

impl EndTexts {
    /// The items are named by a column.
    fn new(text: &Text, column: &str, max: usize) -> Self {
        let ours = ours(column);
        let list = |set: &str| text.list(&format!("UPDATE {{table}} SET {set} WHERE {ours}"), max);
        Self {
            done: list(&format!("state = {DONE}, due_at = {{now}}, holder = NULL, cause = NULL")),
            again: list("due_at = {now} + ?, holder = NULL, cause = ?"),
            failed: list(&format!("state = {FAILED}, due_at = {{now}}, holder = NULL, cause = ?")),
            // Back to where it was in the line.
            not_tried: list("due_at = created_at, attempts = attempts - 1, holder = NULL, cause = ?"),
            later: list("due_at = {now} + ?, attempts = attempts - 1, holder = NULL, cause = ?"),
            remove: text.list(&format!("DELETE FROM {{table}} WHERE {ours}"), max),
            ours: text.list(
                &format!(
                    "SELECT id, item_id, user_id, item_key, key_hash, payload, attempts, created_at FROM {{table}} \
                     WHERE {ours} {{for_update}}"
                ),
                max,
            ),
        }
    }
}

/// Items with the same end, and the same lease number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Done,
    Again { attempts: u32, at_least: Duration, cause: String },
    Failed(String),
    NotTried(String),
    Later { after: Duration, cause: String },
    Split(Vec<Part>),
}

impl Queue {
    /// Writes down what became of the items, each with its outcome.
    pub async fn finish(&self, outcomes: &[(Item, Outcome)]) -> Result<Finished, Error> {
        let mut groups: BTreeMap<(End, i64), Vec<i64>> = BTreeMap::new();
        // Those that were claimed with their push.
        let mut born: BTreeMap<End, Vec<Uuid>> = BTreeMap::new();
        for (item, outcome) in outcomes {
            let end = self.end(item.attempts, outcome);
            if item.number == Item::NO_NUMBER {
                born.entry(end).or_default().push(item.id);
            } else {
                groups.entry((end, item.lease)).or_default().push(item.number);
            }
        }
        let born = born.iter().flat_map(|(end, ids)| named(end, ids));
        let groups = groups.iter().map(|((end, lease), numbers)| (end, *lease, Names::Numbers(numbers)));
        let finished = self.write(&groups.chain(born).collect::<Vec<_>>()).await?;
        if finished.not_tried > 0 {
            self.wake();
        }
        Ok(finished)
    }

    /// Writes down what became of items that were [pushed as claimed](crate::Unordered::push_claimed), unless their lease has ended and somebody
    /// else has claimed them. What was not tried any worker may claim at once.
    pub async fn finish_claimed(&self, ids: &[Uuid], outcome: &Outcome) -> Result<Finished, Error> {
        let end = self.end(BORN_CLAIMED, outcome);
        let groups: Vec<(&End, i64, Names<'_>)> = named(&end, ids).collect();
        let finished = self.write(&groups).await?;
        if finished.not_tried > 0 {
            self.wake();
        }
        Ok(finished)
    }

    fn end(&self, attempts: u32, outcome: &Outcome) -> End {
        let short = |cause: &str| cause.chars().take(CAUSE).collect();
        let again = |at_least: Duration, cause: &str| {
            if attempts < self.config.max_attempts {
                End::Again { attempts, at_least, cause: short(cause) }
            } else {
                End::Failed(short(cause))
            }
        };
        match outcome {
            Outcome::Done => End::Done,
            Outcome::Again(cause) => again(Duration::ZERO, cause),
            Outcome::AgainAfter { after, cause } => again(*after, cause),
            Outcome::Failed(cause) => End::Failed(short(cause)),
            Outcome::NotTried(cause) => End::NotTried(short(cause)),
            Outcome::Later { after, cause } => End::Later { after: *after, cause: short(cause) },
            Outcome::Split(parts) => End::Split(parts.clone()),
        }
    }

    /// Writes down ends of items, all together, each with the lease number that its items had.
    async fn write(&self, groups: &[(&End, i64, Names<'_>)]) -> Result<Finished, Error> {
        if groups.is_empty() {
            return Ok(Finished::default());
        }
        let writing = async {
            let (mut finished, mut failed) = (Finished::default(), Vec::new());
            let mut tx = self.db.begin().await?;
            for (end, lease, names) in groups {
                let (changed, items) = self.write_group(&mut tx, end, *lease, *names).await?;
                if let End::Failed(cause) = end {
                    failed.push((items, cause));
                }
                let count = match end {
                    End::Done | End::Split(_) => &mut finished.done,
                    End::Again { .. } => &mut finished.again,
                    End::Failed(_) => &mut finished.failed,
                    End::NotTried(_) => &mut finished.not_tried,
                    End::Later { .. } => &mut finished.later,
                };
                *count += changed;
                finished.stale += names.len().saturating_sub(changed);
            }
            tx.commit().await?;
            Ok::<_, Error>((finished, failed))
        };
        let (finished, failed) = self.db.bounded(writing).await?;
        self.metrics.finished(&finished);
        for (items, cause) in failed {
            self.note_committed(&items, cause);
        }
        Ok(finished)
    }

    /// Returns how many items were changed, and those of them that had to be read.
    async fn write_group(
        &self,
        tx: &mut Tx,
        end: &End,
        lease: i64,
        names: Names<'_>,
    ) -> Result<(usize, Vec<Item>), Error> {
        let texts = self.finish.of(names);
        let (statement, wait, cause) = match end {
            End::Done => (&texts.done, None, None),
            End::Again { attempts, at_least, cause } => {
                (&texts.again, Some(self.config.retry.after(*attempts).max(*at_least)), Some(cause))
            }
            End::Failed(cause) => (&texts.failed, None, Some(cause)),
            End::NotTried(cause) => (&texts.not_tried, None, Some(cause)),
            End::Later { after, cause } => (&texts.later, Some(*after), Some(cause)),
            End::Split(_) => (&texts.remove, None, None),
        };
        let is_read = match end {
            End::Failed(_) => self.on_failed.is_some(),
            End::Split(_) => true,
            _ => false,
        };
        let items = if is_read { self.lock_ours(tx, names, lease).await? } else { Vec::new() };
        if let End::Failed(cause) = end {
            self.tell_failed(tx, &items, cause).await?;
        }
        let (text, padding) = statement.of(names.len());
        let changed = db::on!(tx, connection => {
            let mut query = sqlx::query(text);
            if let Some(wait) = wait {
                query = query.bind(millis(wait));
            }
            if let Some(cause) = cause {
                query = query.bind(cause);
            }
            bind_names!(query.bind(lease), names, padding).execute(connection).await?.rows_affected()
        });
        if let End::Split(parts) = end {
            self.write_parts(tx, &items, parts).await?;
        }
        Ok((changed.try_into().unwrap_or(usize::MAX), items))
    }

    /// Writes the parts of items that were still ours and are removed.
    async fn write_parts(&self, tx: &mut Tx, items: &[Item], parts: &[Part]) -> Result<(), Error> {
        for item in items {
            for part in parts {
                self.push_part(tx, item, part);
                // Parts of a large item are large together: a server takes messages up to some size only.
                tx.write().await?;
            }
        }
        Ok(())
    }

    /// Makes the lease last from now on, for those items that are still ours. Says how many they are, and until when.
    pub async fn renew(&self, items: &[Item]) -> Result<(usize, Instant), Error> {
        let mut groups: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        // One that was claimed with its push has its lease, and no more.
        for item in items.iter().filter(|item| item.number != Item::NO_NUMBER) {
            groups.entry(item.lease).or_default().push(item.number);
        }
        let until = Instant::now() + self.config.lease;
        let renewed = self.db.bounded(self.renew_groups(&groups, self.config.lease)).await?;
        Ok((renewed, until))
    }

    /// Writes a new payload for an item, in the caller's transaction, and makes its lease last from then on: how far somebody got
    /// who takes long, so that others can go on from there. False if the item is no longer ours: then the caller rolls back.
    ///
    /// Progress makes this the first attempt again. The item that the caller has still counts the attempts from before.
    pub async fn save(&self, tx: &mut Tx, item: &Item, payload: &[u8]) -> Result<bool, Error> {
        let numbers = [item.number];
        let (text, padding) = self.finish.save.of(numbers.len());
        let lease = millis(self.config.lease);
        let changed = db::on!(tx, connection => {
            let query = sqlx::query(text).bind(payload).bind(lease).bind(item.lease);
            bind_list!(query, numbers, padding).execute(connection).await?.rows_affected()
        });
        Ok(changed > 0)
    }

    async fn renew_groups(&self, groups: &BTreeMap<i64, Vec<i64>>, lease: Duration) -> Result<usize, Error> {
        let mut renewed = 0;
        let mut tx = self.db.begin().await?;
        for (number, items) in groups {
            let (text, padding) = self.finish.renew.of(items.len());
            renewed += db::on!(tx, connection => {
                let query = sqlx::query(text).bind(millis(lease)).bind(*number);
                bind_list!(query, items, padding).execute(connection).await?.rows_affected()
            });
        }
        tx.commit().await?;
        Ok(renewed.try_into().unwrap_or(usize::MAX))
    }
}

/// Items that were claimed with their push.
fn named<'a>(end: &'a End, ids: &'a [Uuid]) -> impl Iterator<Item = (&'a End, i64, Names<'a>)> {
    ids.chunks(IDS_AT_ONCE).map(move |ids| (end, BORN_CLAIMED.into(), Names::Ids(ids)))
}

/// The condition that items are still ours, who had them under a lease number.
fn ours(column: &str) -> String {
    format!("lease = ? AND state = {OPEN} AND {column} IN ({{list}})")
}

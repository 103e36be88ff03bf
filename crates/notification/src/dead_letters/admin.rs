//! Listing, replaying and discarding dead letters, for operators.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use base::page::{next_page, rows_to_read};
use db::Tx;
use work_queue::{DecisionError, NewItem, WorkQueue};

use super::{BROADCAST, DEAD_LETTER_KINDS};
use crate::model::Channel;
use crate::service::CreatedBatch;
use crate::{Error, Notifications, store};

/// How many dead letters one call removes after the retention.
const EXPIRED_PER_CALL: i64 = 100;

/// A dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Increases with each dead letter.
    pub number: i64,
    pub id: Uuid,
    /// `event`, `broadcast`, or the channel of the delivery: `live`, `log`, `webhook`.
    pub kind: String,
    /// Delivery: the channel (`webhook:NAME`). Broadcast: `all`. Event: its subject.
    pub destination: String,
    pub notification: Option<Uuid>,
    pub user: Option<Uuid>,
    /// The position of an event in the stream.
    pub stream_position: Option<i64>,
    pub attempts: u32,
    pub cause: String,
    /// The notification or the broadcast in JSON, or the bytes of an event as they arrived.
    pub payload: Vec<u8>,
    /// When the delivery was created, or the event arrived.
    pub created: Timestamp,
    pub died: Timestamp,
}

/// Selects dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub kind: Option<String>,
    pub destination: Option<String>,
    pub user: Option<Uuid>,
    /// A substring of the cause.
    pub cause: Option<String>,
    /// Given up at this time or later.
    pub since: Option<Timestamp>,
    /// Only those with a higher number.
    pub after: i64,
    /// Only those up to this number, so that a command leaves newer ones alone.
    pub up_to: Option<i64>,
}

/// Dead letters of one kind with the same cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterGroup {
    pub kind: String,
    pub cause: String,
    pub count: u64,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// A page of dead letters, oldest first, each without its payload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeadLetterPage {
    pub dead_letters: Vec<DeadLetter>,
    /// The number after which the next page begins, if there is one.
    pub next: Option<i64>,
}

/// The result of replaying several dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    pub replayed: usize,
    /// Those that could not be replayed, each with the cause.
    pub failed: Vec<(Uuid, String)>,
    /// The number after which the next page begins, if there is one.
    pub next: Option<i64>,
}

impl Notifications {
    /// Lists dead letters.
    pub async fn dead_letters(&self, filter: &DeadLetterFilter, limit: u32) -> Result<DeadLetterPage, Error> {
        let mut dead_letters = store::dead_letters(&self.0.db, filter, rows_to_read(limit)).await?;
        let next = next_page(&mut dead_letters, limit, |last| last.number);
        Ok(DeadLetterPage { dead_letters, next })
    }

    /// Counts the dead letters that match, up to `cap + 1`.
    pub async fn count_matching_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        cap: u64,
    ) -> Result<u64, Error> {
        Ok(store::count_matching_dead_letters(&self.0.db, filter, cap).await?)
    }

    /// Groups the newest `newest` dead letters by kind and cause. The largest group is first.
    pub async fn group_dead_letters(&self, newest: u32, groups: u32) -> Result<Vec<DeadLetterGroup>, Error> {
        Ok(store::group_dead_letters(&self.0.db, newest, groups).await?)
    }

    /// Returns a dead letter with its payload.
    pub async fn dead_letter(&self, id: Uuid) -> Result<DeadLetter, Error> {
        store::dead_letter(&self.0.db, id).await?.ok_or_else(|| Error::DeadLetterNotFound(id.to_string()))
    }

    /// Returns the queue that a dead letter comes from; none for an event.
    fn queue_for(&self, dead_letter: &DeadLetter) -> Option<&WorkQueue> {
        if dead_letter.kind == BROADCAST {
            return Some(self.0.broadcasts.queue());
        }
        self.0.deliveries.queue(&dead_letter.kind)
    }

    /// Replays a dead letter: delivers it again, resumes the broadcast, or takes the event in again. It has all its attempts again, the
    /// first one after the delay `after`. If two callers replay the same one, the second gets [`Error::DeadLetterNotFound`].
    pub async fn replay(&self, id: Uuid, after: Duration) -> Result<(), Error> {
        let created = self.retrying(|| self.try_replay(id, after)).await?;
        self.deliver(&created).await;
        Ok(())
    }

    async fn try_replay(&self, id: Uuid, after: Duration) -> Result<CreatedBatch, Error> {
        let dead_letter = self.dead_letter(id).await?;
        if self.queue_for(&dead_letter).is_none() {
            return self.replay_event(&dead_letter).await;
        }
        if let Ok(Channel::Webhook(name)) = dead_letter.destination.parse()
            && let Some((since, cause)) = self.webhooks().disabled(&name).await?
        {
            let since = since.to_rfc3339();
            return Err(Error::NotPossible(format!(
                "the destination has been disabled since {since} ({cause}): enable it first with `playhouse webhooks enable {name}`"
            )));
        }
        self.replay_item(id, after).await?;
        Ok(CreatedBatch::default())
    }

    /// Takes in the event of a dead letter, and removes the dead letter.
    async fn replay_event(&self, dead_letter: &DeadLetter) -> Result<CreatedBatch, Error> {
        let event = self
            .interpret(&dead_letter.destination, &dead_letter.payload)
            .map_err(|cause| Error::NotPossible(format!("the event still cannot be interpreted: {cause}")))?;
        let batch = self.prepare_intake(&[&event]).await?;
        let (mut tx, new) = store::begin_intake(&self.0.db, &batch.ids()).await?;
        let (created, _) = self.create_for_events(&mut tx, &batch, new).await?;
        // Another operator may have replayed it in the meantime.
        lock(&mut tx, dead_letter.id).await?;
        store::remove_dead_letter(&mut tx, dead_letter.id).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// Puts the item of a dead letter back into its queue, and removes the dead letter.
    async fn replay_item(&self, id: Uuid, after: Duration) -> Result<(), Error> {
        let mut tx = self.begin().await?;
        // Another operator may have replayed it in the meantime.
        let dead_letter = lock(&mut tx, id).await?;
        if let Some(queue) = self.queue_for(&dead_letter) {
            let user = dead_letter.user.unwrap_or_default();
            // The key of a broadcast is its id.
            let broadcast = id.to_string();
            let key = if dead_letter.kind == BROADCAST { &broadcast } else { &dead_letter.destination };
            let new = NewItem { id, user, key, payload: &dead_letter.payload };
            match queue.retry_in(&mut tx, id, after).await? {
                // The queue has removed the item after its retention.
                Err(DecisionError::Unknown) => queue.push(&mut tx, &[new]),
                // It is in flight, or was done: there is nothing to replay.
                Ok(()) | Err(DecisionError::NotFailed | DecisionError::NotHeld | DecisionError::Finished) => {
                }
            }
        }
        store::remove_dead_letter(&mut tx, id).await?;
        Ok(tx.commit().await?)
    }

    /// Replays a page of dead letters, oldest first. Spreads the deliveries so that `per_second` of them begin in a second.
    pub async fn replay_some(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
        per_second: u32,
    ) -> Result<ReplayReport, Error> {
        let DeadLetterPage { dead_letters, next } = self.dead_letters(filter, limit).await?;
        let mut report = ReplayReport { next, ..ReplayReport::default() };
        for (at, dead_letter) in dead_letters.iter().enumerate() {
            let after = Duration::from_secs_f64(at as f64 / f64::from(per_second.max(1)));
            match self.replay(dead_letter.id, after).await {
                Ok(()) => report.replayed += 1,
                // Another operator has replayed or discarded it.
                Err(Error::DeadLetterNotFound(_)) => {}
                Err(error @ Error::NotPossible(_)) => report.failed.push((dead_letter.id, error.to_string())),
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Removes a dead letter and its item.
    pub async fn discard(&self, id: Uuid) -> Result<(), Error> {
        self.retrying(|| self.try_discard(id)).await
    }

    async fn try_discard(&self, id: Uuid) -> Result<(), Error> {
        let mut tx = self.begin().await?;
        let dead_letter = lock(&mut tx, id).await?;
        if let Some(queue) = self.queue_for(&dead_letter) {
            queue.remove_in(&mut tx, id).await?;
        }
        store::remove_dead_letter(&mut tx, id).await?;
        Ok(tx.commit().await?)
    }

    /// Removes some of the dead letters that are older than `dead_retention`. Returns how many.
    pub(crate) async fn expire_dead_letters(&self) -> Result<u64, Error> {
        let old = store::old_dead_letters(&self.0.db, self.0.config.dead_retention, EXPIRED_PER_CALL).await?;
        for id in &old {
            match self.discard(*id).await {
                Ok(()) | Err(Error::DeadLetterNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(old.len() as u64)
    }

    /// Returns the number of the newest dead letter, or 0.
    pub async fn last_dead_letter(&self) -> Result<i64, Error> {
        Ok(store::last_dead_letter(&self.0.db).await?)
    }

    /// Counts the dead letters of each kind.
    pub async fn count_dead_letters(&self) -> Result<Vec<(&'static str, i64)>, Error> {
        let counts = store::count_dead_letters(&self.0.db).await?;
        let count = |kind: &'static str| {
            let count = counts.iter().find(|(found, _)| found == kind).map_or(0, |(_, count)| *count);
            (kind, count)
        };
        Ok(DEAD_LETTER_KINDS.map(count).to_vec())
    }
}

/// Reads a dead letter and locks it until the transaction ends.
async fn lock(tx: &mut Tx, id: Uuid) -> Result<DeadLetter, Error> {
    store::lock_dead_letter(tx, id).await?.ok_or_else(|| Error::DeadLetterNotFound(id.to_string()))
}

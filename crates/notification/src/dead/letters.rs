//! What operators do with dead letters.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::Tx;
use work_queue::{New, Queue, Unfit};

use super::{BROADCAST, KINDS};
use crate::model::Channel;
use crate::service::Made;
use crate::{Error, Notifications, store};

/// How many letters expire at once.
const EXPIRED_AT_ONCE: i64 = 100;

/// A dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// Counts up.
    pub number: i64,
    pub id: Uuid,
    /// `event`, `broadcast`, or the channel: `live`, `log`, `webhook`.
    pub kind: String,
    /// Where it was to go (`webhook:NAME`, of a broadcast `all`); of an event, its subject.
    pub destination: String,
    pub notification: Option<Uuid>,
    pub user: Option<Uuid>,
    /// Where an event stands in the stream.
    pub stream_position: Option<i64>,
    pub attempts: u32,
    pub cause: String,
    /// The notification or the broadcast in JSON; of an event, its bytes as they came.
    pub payload: Vec<u8>,
    /// When the delivery was made, or the event came.
    pub created: Timestamp,
    pub died: Timestamp,
}

/// Which letters are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letters {
    pub kind: Option<String>,
    pub destination: Option<String>,
    pub user: Option<Uuid>,
    /// Only those behind this number.
    pub after: i64,
    /// Only those up to this number: what dies later is not meant.
    pub up_to: Option<i64>,
}

/// What came of replaying several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub replayed: usize,
    /// Those that stay, and why.
    pub failed: Vec<(Uuid, String)>,
    /// The number to go on behind, if there may be more.
    pub next: Option<i64>,
}

impl Notifications {
    /// Dead letters, the oldest first, each without its payload.
    pub async fn letters(&self, which: &Letters, limit: u32) -> Result<Vec<Letter>, Error> {
        Ok(store::letters(&self.0.db, which, limit).await?)
    }

    /// One dead letter.
    pub async fn letter(&self, id: Uuid) -> Result<Letter, Error> {
        store::letter(&self.0.db, id).await?.ok_or_else(|| Error::NoLetter(id.to_string()))
    }

    /// The queue that a letter comes from; none for an event.
    fn queue_of(&self, letter: &Letter) -> Option<&Queue> {
        if letter.kind == BROADCAST {
            return Some(self.0.broadcasts.queue());
        }
        self.0.deliveries.queue(&letter.kind)
    }

    /// Has a letter delivered once more, a broadcast resumed behind the last user who was told, or an event taken in once more: with all attempts, the first one after a while. Done twice it
    /// happens once: whoever comes second finds no letter.
    pub async fn replay(&self, id: Uuid, after: Duration) -> Result<(), Error> {
        let made = self.retrying(|| self.try_replay(id, after)).await?;
        self.deliver(&made).await;
        Ok(())
    }

    async fn try_replay(&self, id: Uuid, after: Duration) -> Result<Made, Error> {
        let letter = self.letter(id).await?;
        if self.queue_of(&letter).is_none() {
            return self.replay_event(&letter).await;
        }
        if let Ok(Channel::Webhook(name)) = letter.destination.parse()
            && let Some((since, cause)) = self.webhooks().disabled(&name).await?
        {
            let since = since.to_rfc3339();
            return Err(Error::Unfit(format!(
                "its destination is disabled since {since} ({cause}): enable it first with `playhouse webhooks enable {name}`"
            )));
        }
        self.replay_item(id, after).await?;
        Ok(Made::default())
    }

    /// Takes in an event that was dead, and removes its letter.
    async fn replay_event(&self, letter: &Letter) -> Result<Made, Error> {
        let understood = self
            .understand(&letter.destination, &letter.payload)
            .map_err(|cause| Error::Unfit(format!("it still cannot be told: {cause}")))?;
        let incoming = self.incoming(&[&understood]).await?;
        let (mut tx, new) = store::begin_intake(&self.0.db, &incoming.ids()).await?;
        let (made, _) = self.make_of(&mut tx, &incoming, new).await?;
        // Somebody else may have been faster.
        lock(&mut tx, letter.id).await?;
        store::remove_letter(&mut tx, letter.id).await?;
        tx.commit().await?;
        Ok(made)
    }

    /// Puts what a letter says back into its queue, and removes the letter.
    async fn replay_item(&self, id: Uuid, after: Duration) -> Result<(), Error> {
        let mut tx = self.begin().await?;
        // Somebody else may have been faster.
        let letter = lock(&mut tx, id).await?;
        if let Some(queue) = self.queue_of(&letter) {
            let user = letter.user.unwrap_or_default();
            // A broadcast is its own key.
            let broadcast = id.to_string();
            let key = if letter.kind == BROADCAST { &broadcast } else { &letter.destination };
            let new = New { id, user, key, payload: &letter.payload };
            match queue.retry_in(&mut tx, id, after).await? {
                // The queue has forgotten it; the letter has not.
                Err(Unfit::Unknown) => queue.push(&mut tx, &[new]),
                // It is at work, or was done: there is nothing to replay.
                Ok(()) | Err(Unfit::NotFailed | Unfit::NotHeld | Unfit::Finished) => {}
            }
        }
        store::remove_letter(&mut tx, id).await?;
        Ok(tx.commit().await?)
    }

    /// Replays some letters, oldest first: deliveries spread so that so many begin in a second.
    pub async fn replay_some(&self, which: &Letters, limit: u32, per_second: u32) -> Result<Replayed, Error> {
        let letters = self.letters(which, limit).await?;
        let is_full = letters.len() >= limit as usize;
        let mut replayed = Replayed {
            next: letters.last().filter(|_| is_full).map(|last| last.number),
            ..Replayed::default()
        };
        for (at, letter) in letters.iter().enumerate() {
            let after = Duration::from_secs_f64(at as f64 / f64::from(per_second.max(1)));
            match self.replay(letter.id, after).await {
                Ok(()) => replayed.replayed += 1,
                // Somebody else was faster.
                Err(Error::NoLetter(_)) => {}
                Err(error @ Error::Unfit(_)) => replayed.failed.push((letter.id, error.to_string())),
                Err(error) => return Err(error),
            }
        }
        Ok(replayed)
    }

    /// Throws a letter away.
    pub async fn discard(&self, id: Uuid) -> Result<(), Error> {
        self.retrying(|| self.try_discard(id)).await
    }

    async fn try_discard(&self, id: Uuid) -> Result<(), Error> {
        let mut tx = self.begin().await?;
        let letter = lock(&mut tx, id).await?;
        if let Some(queue) = self.queue_of(&letter) {
            queue.remove_in(&mut tx, id).await?;
        }
        store::remove_letter(&mut tx, id).await?;
        Ok(tx.commit().await?)
    }

    /// Throws away some of the letters whose time is over, and says how many.
    pub(crate) async fn expire_letters(&self) -> Result<u64, Error> {
        let old = store::old_letters(&self.0.db, self.0.config.dead_retention, EXPIRED_AT_ONCE).await?;
        for id in &old {
            match self.discard(*id).await {
                Ok(()) | Err(Error::NoLetter(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(old.len() as u64)
    }

    /// The number of the newest letter, or 0.
    pub async fn last_letter(&self) -> Result<i64, Error> {
        Ok(store::last_letter(&self.0.db).await?)
    }

    /// How many letters there are of each kind.
    pub async fn count_letters(&self) -> Result<Vec<(&'static str, i64)>, Error> {
        let counts = store::count_letters(&self.0.db).await?;
        let of = |kind: &'static str| {
            let count = counts.iter().find(|(found, _)| found == kind).map_or(0, |(_, count)| *count);
            (kind, count)
        };
        Ok(KINDS.map(of).to_vec())
    }
}

/// Reads a letter and locks it until the transaction ends.
async fn lock(tx: &mut Tx, id: Uuid) -> Result<Letter, Error> {
    store::lock_letter(tx, id).await?.ok_or_else(|| Error::NoLetter(id.to_string()))
}

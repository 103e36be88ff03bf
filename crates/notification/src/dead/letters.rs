//! What operators do with dead letters.

use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use db::Tx;
use sqlx::AssertSqlSafe;
use work_queue::{New, Queue, Unfit};

use super::{BROADCAST, KINDS};
use crate::service::Made;
use crate::store::uuid;
use crate::{Error, Notifications};

/// How many letters expire at once.
const EXPIRED_AT_ONCE: i64 = 100;

const COLUMNS: &str = "SELECT id, letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, payload, \
    created_at, died_at FROM notification_dlq";
/// Without what is in them, which may be much.
const OUTSIDE: &str = "SELECT id, letter_id, kind, destination, notification_id, user_id, stream_position, attempts, cause, X'', \
    created_at, died_at FROM notification_dlq";

type Row = (
    i64,
    Vec<u8>,
    String,
    String,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<i64>,
    i32,
    String,
    Vec<u8>,
    i64,
    i64,
);

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
        let mut text = format!("{OUTSIDE} WHERE id > ?");
        let Letters { kind, destination, user, after, up_to } = which;
        if up_to.is_some() {
            text.push_str(" AND id <= ?");
        }
        for (column, is_given) in
            [("kind", kind.is_some()), ("destination", destination.is_some()), ("user_id", user.is_some())]
        {
            if is_given {
                text.push_str(&format!(" AND {column} = ?"));
            }
        }
        text.push_str(" ORDER BY id LIMIT ?");
        let reading = async {
            let mut connection = self.0.db.connection().await?;
            let rows: Vec<Row> = db::on!(connection, raw => {
                let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(after);
                if let Some(up_to) = up_to {
                    query = query.bind(up_to);
                }
                if let Some(kind) = kind {
                    query = query.bind(kind);
                }
                if let Some(destination) = destination {
                    query = query.bind(destination);
                }
                if let Some(user) = user {
                    query = query.bind(user.as_bytes().to_vec());
                }
                query.bind(i64::from(limit)).fetch_all(raw).await?
            });
            Ok::<_, db::Error>(rows.into_iter().map(letter).collect())
        };
        Ok(self.0.db.bounded(reading).await?)
    }

    /// One dead letter.
    pub async fn letter(&self, id: Uuid) -> Result<Letter, Error> {
        let text = AssertSqlSafe(format!("{COLUMNS} WHERE letter_id = ?"));
        let reading = async {
            let mut connection = self.0.db.connection().await?;
            let row: Option<Row> = db::on!(connection, raw => {
                sqlx::query_as(text).bind(id.as_bytes().to_vec()).fetch_optional(raw).await?
            });
            Ok::<_, db::Error>(row.map(letter))
        };
        self.0.db.bounded(reading).await?.ok_or_else(|| Error::NoLetter(id.to_string()))
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
        let (mut tx, made) = match self.queue_of(&letter) {
            Some(_) => (self.begin().await?, Made::default()),
            None => {
                let understood = self.understand(&letter.destination, &letter.payload);
                let understood =
                    understood.map_err(|cause| Error::Unfit(format!("it still cannot be told: {cause}")))?;
                let (mut tx, new) = self.begin_intake(&[&understood]).await?;
                let (made, _) = self.make_of(&mut tx, &[&understood], new).await?;
                (tx, made)
            }
        };
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
        remove(&mut tx, id).await?;
        tx.commit().await?;
        Ok(made)
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
        remove(&mut tx, id).await?;
        Ok(tx.commit().await?)
    }

    /// Throws away some of the letters whose time is over, and says how many.
    pub(crate) async fn expire_letters(&self) -> Result<u64, Error> {
        let now = self.0.db.dialect().now();
        let text = AssertSqlSafe(format!(
            "SELECT letter_id FROM notification_dlq WHERE died_at < {now} - ? ORDER BY died_at, id LIMIT ?"
        ));
        let age = i64::try_from(self.0.config.dead_retention.as_millis()).unwrap_or(i64::MAX);
        let reading = async {
            let mut connection = self.0.db.connection().await?;
            let rows: Vec<(Vec<u8>,)> = db::on!(connection, raw => {
                sqlx::query_as(text).bind(age).bind(EXPIRED_AT_ONCE).fetch_all(raw).await?
            });
            Ok::<_, db::Error>(rows)
        };
        let old = self.0.db.bounded(reading).await?;
        for (id,) in &old {
            match self.discard(uuid(id)).await {
                Ok(()) | Err(Error::NoLetter(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(old.len() as u64)
    }

    /// The number of the newest letter, or 0.
    pub async fn last_letter(&self) -> Result<i64, Error> {
        let reading = async {
            let mut connection = self.0.db.connection().await?;
            let (last,): (Option<i64>,) = db::on!(connection, raw => {
                sqlx::query_as("SELECT MAX(id) FROM notification_dlq").fetch_one(raw).await?
            });
            Ok::<_, db::Error>(last.unwrap_or_default())
        };
        Ok(self.0.db.bounded(reading).await?)
    }

    /// How many letters there are of each kind.
    pub async fn count_letters(&self) -> Result<Vec<(&'static str, i64)>, Error> {
        let counting = async {
            let mut connection = self.0.db.connection().await?;
            let rows: Vec<(String, i64)> = db::on!(connection, raw => {
                sqlx::query_as("SELECT kind, COUNT(*) FROM notification_dlq GROUP BY kind").fetch_all(raw).await?
            });
            Ok::<_, db::Error>(rows)
        };
        let counts = self.0.db.bounded(counting).await?;
        let of = |kind: &'static str| {
            let count = counts.iter().find(|(found, _)| found == kind).map_or(0, |(_, count)| *count);
            (kind, count)
        };
        Ok(KINDS.map(of).to_vec())
    }
}

/// The letter, which is the caller's until the transaction ends.
async fn lock(tx: &mut Tx, id: Uuid) -> Result<Letter, Error> {
    let text =
        AssertSqlSafe(format!("{COLUMNS} WHERE letter_id = ? {}", tx.dialect().pick("", "FOR UPDATE")));
    let row: Option<Row> = db::on!(tx, connection => {
        sqlx::query_as(text).bind(id.as_bytes().to_vec()).fetch_optional(connection).await.map_err(db::Error::from)?
    });
    row.map(letter).ok_or_else(|| Error::NoLetter(id.to_string()))
}

async fn remove(tx: &mut Tx, id: Uuid) -> Result<(), db::Error> {
    const REMOVE: &str = "DELETE FROM notification_dlq WHERE letter_id = ?";
    db::on!(tx, connection => {
        sqlx::query(REMOVE).bind(id.as_bytes().to_vec()).execute(connection).await?;
    });
    Ok(())
}

fn letter(row: Row) -> Letter {
    let (
        number,
        id,
        kind,
        destination,
        notification,
        user,
        stream_position,
        attempts,
        cause,
        payload,
        created,
        died,
    ) = row;
    Letter {
        number,
        id: uuid(&id),
        kind,
        destination,
        notification: notification.as_deref().map(uuid),
        user: user.as_deref().map(uuid),
        stream_position,
        attempts: attempts.unsigned_abs(),
        cause,
        payload,
        created: Timestamp::from_millis(created),
        died: Timestamp::from_millis(died),
    }
}

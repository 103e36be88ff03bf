//! Telling everybody: a long item of work that goes through the users a few at a time.
//!
//! Each step puts the message into the inboxes of the next users and writes down how far it is, in one transaction: whatever dies,
//! another worker goes on behind the last user who was told, and nobody is told twice.
//!
//! A store that is away costs no attempt, and each step that succeeds makes the next attempt the first one again. A broadcast that makes no
//! progress in all attempts is a dead letter; replayed, it goes on behind the last user who was told. Operators stop and resume broadcasts.

use std::sync::Arc;
use std::time::Duration;

use account::{Accounts, UserId};
use base::error::{Coded, chain};
use base::id::{ProcessId, Uuid};
use base::{Clock, Timestamp};
use db::{Db, Tx};
use runtime::fault;
use runtime::lifecycle::{Drain, LoopError};
use serde::{Deserialize, Serialize};
use work_queue::{
    Entry, Filter, Handler, Item, Keeper, New, Outcome, Queue, State, Unfit, Unordered, Worker,
};

use crate::dead::BuryBroadcast;
use crate::model::{Addressed, Message};
use crate::service::Made;
use crate::{Error, Notifications};

/// The queue.
pub const BROADCAST: &str = "notification_broadcast";
/// How many users are told in one transaction.
const AT_ONCE: u32 = 500;

/// A broadcast, as far as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Broadcast {
    message: Message,
    /// The last user who was told.
    after: Option<Uuid>,
    told: u64,
}

impl Broadcast {
    pub(crate) fn new(message: Message) -> Self {
        Self { message, after: None, told: 0 }
    }
}

/// A broadcast as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub id: Uuid,
    pub state: State,
    /// How many users have been told.
    pub told: u64,
    /// How often it was tried since it last made progress.
    pub attempts: u32,
    /// Why it was interrupted the last time.
    pub cause: Option<String>,
    /// What it says, in one of its languages.
    pub title: String,
    pub created: Timestamp,
    /// Pending: when it goes on. Processing: when the lease ends. Else: since when it is in this state.
    pub due: Timestamp,
}

/// The broadcasts that are under way. Clones are the same.
#[derive(Clone, Debug)]
pub struct Broadcasts(Unordered);

impl Broadcasts {
    pub fn new(db: &Db, config: &work_queue::Config, metrics: &work_queue::Metrics, clock: &Clock) -> Self {
        // One at a time per worker: each is long.
        let config = work_queue::Config { batch: 1, ..config.clone() };
        let queue = Queue::new(BROADCAST, db.clone(), config, metrics.of(BROADCAST), clock.clone());
        Self(queue.on_failed(Arc::new(BuryBroadcast)).unordered())
    }

    pub(crate) fn push(&self, tx: &mut Tx, id: Uuid, broadcast: &Broadcast) {
        // It is made of plain values.
        let payload = serde_json::to_vec(broadcast).unwrap_or_default();
        self.0.push(tx, &[New { id, user: Uuid::nil(), key: &id.to_string(), payload: &payload }]);
    }

    /// The queue, for what operators do with dead letters.
    pub(crate) fn queue(&self) -> &Queue {
        &self.0
    }

    /// How far a broadcast is, if there is one of this name, or was until lately.
    pub async fn progress(&self, id: Uuid) -> Result<Option<Progress>, Error> {
        Ok(self.0.find(id).await?.map(progress))
    }

    /// Lists the broadcasts that are known, the newest first; or those in one state, the longest in it first.
    pub async fn list(&self, filter: Filter, limit: u32) -> Result<Vec<Progress>, Error> {
        Ok(self.0.list(filter, limit).await?.into_iter().map(progress).collect())
    }

    /// Stops a broadcast: it reaches no further player until it is resumed, also across restarts.
    pub async fn stop(&self, id: Uuid) -> Result<(), Error> {
        self.0.hold(id).await?.map_err(|unfit| no_change(id, unfit))
    }

    /// Resumes a broadcast that was stopped, behind the last user who was told.
    pub async fn resume(&self, id: Uuid) -> Result<(), Error> {
        self.0.resume(id).await?.map_err(|unfit| no_change(id, unfit))
    }

    /// Tells, until told to stop.
    pub async fn run(
        &self,
        process: ProcessId,
        notifications: Notifications,
        drain: Drain,
    ) -> Result<(), LoopError> {
        let teller = Teller { queue: self.0.clone().into(), notifications, drain: drain.clone() };
        Worker::new(self.0.clone(), teller, process).run(drain).await
    }

    /// Removes what was done long enough ago, until told to stop.
    pub async fn keep(&self, drain: Drain) -> Result<(), LoopError> {
        Keeper::new(self.0.clone()).run(drain).await
    }
}

impl Notifications {
    /// Resumes a broadcast that was stopped, or is a dead letter, behind the last user who was told.
    pub async fn resume_broadcast(&self, id: Uuid) -> Result<(), Error> {
        match self.replay(id, Duration::ZERO).await {
            Err(Error::NoLetter(_)) => self.broadcasts().resume(id).await,
            replayed => replayed,
        }
    }
}

#[derive(Debug)]
struct Teller {
    queue: Queue,
    notifications: Notifications,
    drain: Drain,
}

impl Handler for Teller {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(items.len());
        for item in items {
            outcomes.push(self.tell_all(item).await);
        }
        outcomes
    }
}

impl Teller {
    async fn tell_all(&self, item: &Item) -> Outcome {
        let mut broadcast: Broadcast = match serde_json::from_slice(&item.payload) {
            Ok(broadcast) => broadcast,
            Err(cause) => {
                let corrupt = self.notifications.0.db.corrupt(BROADCAST, item.id, cause);
                return Outcome::Failed(corrupt.to_string());
            }
        };
        let message = Arc::new(broadcast.message.clone());
        let mut has_progressed = false;
        loop {
            if self.drain.is_requested() {
                return Outcome::NotTried("this process stops".to_owned());
            }
            match self.tell_some(item, &mut broadcast, &message).await {
                Ok(Step::More) => has_progressed = true,
                Ok(Step::Done) => return Outcome::Done,
                Ok(Step::Lost) => {
                    return Outcome::NotTried("another worker has it, or it was stopped".to_owned());
                }
                // That is the store, not the broadcast.
                Err(error) if error.is_passing() => return Outcome::NotTried(chain(&error)),
                // The attempts of this item were counted before it made progress.
                Err(error) if has_progressed => {
                    return Outcome::Later {
                        after: self.queue.config().retry.after(1),
                        cause: chain(&error),
                    };
                }
                Err(error) => return Outcome::Again(chain(&error)),
            }
        }
    }

    async fn tell_some(
        &self,
        item: &Item,
        broadcast: &mut Broadcast,
        message: &Arc<Message>,
    ) -> Result<Step, Error> {
        let accounts: &Accounts = &self.notifications.0.accounts;
        let users = accounts.ids_after(broadcast.after.map(UserId::from_uuid), AT_ONCE).await?;
        let Some(last) = users.last() else { return Ok(Step::Done) };
        let messages: Vec<Addressed> =
            users.iter().map(|user| Addressed::new(item.id, *user.as_uuid(), message)).collect();
        let next = Broadcast {
            after: Some(*last.as_uuid()),
            told: broadcast.told + users.len() as u64,
            message: broadcast.message.clone(),
        };
        let payload = serde_json::to_vec(&next).unwrap_or_default();
        let Some(made) = self.notifications.retrying(|| self.write(item, &payload, &messages)).await? else {
            return Ok(Step::Lost);
        };
        fault::point("notification_broadcast.step");
        *broadcast = next;
        self.notifications.deliver(&made).await;
        Ok(Step::More)
    }
}

impl Teller {
    /// Nothing if the item is no longer ours.
    async fn write(
        &self,
        item: &Item,
        payload: &[u8],
        messages: &[Addressed],
    ) -> Result<Option<Made>, Error> {
        let mut tx = self.notifications.begin().await?;
        if !self.queue.save(&mut tx, item, payload).await? {
            return Ok(None);
        }
        let made = self.notifications.make(&mut tx, messages).await?;
        tx.commit().await?;
        Ok(Some(made))
    }
}

enum Step {
    More,
    Done,
    /// The lease had ended.
    Lost,
}

fn progress(entry: Entry) -> Progress {
    let read: Result<Broadcast, _> = serde_json::from_slice(&entry.payload);
    let (told, title, unreadable) = match read {
        Ok(Broadcast { message, told, .. }) => {
            let title = message.texts.into_values().next().map(|text| text.title);
            (told, title.unwrap_or_default(), None)
        }
        Err(cause) => (0, String::new(), Some(format!("it cannot be read: {cause}"))),
    };
    Progress {
        id: entry.id,
        state: entry.state,
        told,
        attempts: entry.attempts,
        cause: entry.cause.or(unreadable),
        title,
        created: entry.created,
        due: entry.due,
    }
}

fn no_change(id: Uuid, unfit: Unfit) -> Error {
    match unfit {
        Unfit::Unknown => Error::NoBroadcast(id),
        Unfit::Finished | Unfit::NotFailed => Error::Unfit(format!(
            "the broadcast {id} is done, stopped or a dead letter: it cannot be stopped"
        )),
        Unfit::NotHeld => {
            Error::Unfit(format!("the broadcast {id} is not stopped: it is done, or goes on by itself"))
        }
    }
}

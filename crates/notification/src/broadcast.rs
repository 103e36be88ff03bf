//! Telling everybody: a long item of work that goes through the users a few at a time.
//!
//! Each step puts the message into the inboxes of the next users and writes down how far it is, in one transaction: whatever dies,
//! another worker goes on behind the last user who was told, and nobody is told twice.

use std::sync::Arc;

use account::{Accounts, UserId};
use base::error::chain;
use base::id::{ProcessId, Uuid};
use db::{Db, Tx};
use runtime::fault;
use runtime::lifecycle::{Drain, LoopError};
use serde::{Deserialize, Serialize};
use work::{Handler, Item, Keeper, New, Outcome, Queue, State, Worker};

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

/// How far a broadcast is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub state: State,
    /// How many users have been told.
    pub told: u64,
    /// Why it was interrupted the last time.
    pub cause: Option<String>,
}

/// The broadcasts that are under way. Clones are the same.
#[derive(Clone, Debug)]
pub struct Broadcasts(Queue);

impl Broadcasts {
    pub fn new(db: &Db, config: &work::Config, metrics: &work::Metrics) -> Self {
        // One at a time per worker: each is long.
        let config = work::Config { batch: 1, ..config.clone() };
        Self(Queue::new(BROADCAST, db.clone(), config, metrics.of(BROADCAST)).unordered())
    }

    pub(crate) fn push(&self, tx: &mut Tx, id: Uuid, broadcast: &Broadcast) {
        // It is made of plain values.
        let payload = serde_json::to_vec(broadcast).unwrap_or_default();
        self.0.push(tx, &[New { id, user: Uuid::nil(), key: &id.to_string(), payload: &payload }]);
    }

    /// How far a broadcast is, if there is one of this name, or was until lately.
    pub async fn progress(&self, id: Uuid) -> Result<Option<Progress>, Error> {
        let Some(entry) = self.0.find(id).await? else { return Ok(None) };
        let told = serde_json::from_slice(&entry.payload).map_or(0, |broadcast: Broadcast| broadcast.told);
        Ok(Some(Progress { state: entry.state, told, cause: entry.cause }))
    }

    /// Tells, until told to stop.
    pub async fn run(
        &self,
        process: ProcessId,
        notifications: Notifications,
        drain: Drain,
    ) -> Result<(), LoopError> {
        let teller = Teller { queue: self.0.clone(), notifications, drain: drain.clone() };
        Worker::new(self.0.clone(), teller, process).run(drain).await
    }

    /// Removes what was done long enough ago, until told to stop.
    pub async fn keep(&self, drain: Drain) -> Result<(), LoopError> {
        Keeper::new(self.0.clone()).run(drain).await
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
            Err(error) => return Outcome::Failed(chain(&error)),
        };
        let message = Arc::new(broadcast.message.clone());
        loop {
            if self.drain.is_requested() {
                return Outcome::NotTried("this process stops".to_owned());
            }
            match self.tell_some(item, &mut broadcast, &message).await {
                Ok(Step::More) => {}
                Ok(Step::Done) => return Outcome::Done,
                Ok(Step::Lost) => return Outcome::NotTried("somebody else has it".to_owned()),
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

//! Broadcasts: a long item of work that adds a message to the inboxes of all users, 500 at a time.
//!
//! Each step adds the message to the inboxes of the next users and saves its progress in the same transaction. After a crash another
//! worker continues after the last user, and no user is notified twice.
//!
//! An unreachable store costs no attempt, and each step that succeeds resets the attempts. A broadcast that makes no progress in all its
//! attempts becomes a dead letter; a replay continues after the last user. Operators stop and resume broadcasts.

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
    DecisionError, Filter, Handler, Item, ItemOutcome, ItemView, NewItem, RetentionCleaner, State, Unordered,
    WorkQueue, Worker,
};

use crate::dead_letters::BroadcastDeadLetterHook;
use crate::model::{AddressedMessage, Message, Texts};
use crate::service::CreatedBatch;
use crate::{Error, Notifications};

/// The name of the work queue.
pub const BROADCAST: &str = "notification_broadcast";
/// How many users one transaction notifies.
const USERS_PER_STEP: u32 = 500;

/// A broadcast and its progress, as the queue stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Broadcast {
    message: Message,
    /// The last user who was notified.
    after: Option<Uuid>,
    /// How many users were notified. Older versions stored it as `told`.
    #[serde(alias = "told")]
    notified: u64,
}

impl Broadcast {
    pub(crate) fn new(message: Message) -> Self {
        Self { message, after: None, notified: 0 }
    }
}

/// The progress of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub id: Uuid,
    pub state: State,
    /// How many users were notified.
    pub notified: u64,
    /// How many attempts it had since it last made progress.
    pub attempts: u32,
    /// The cause of the last interruption.
    pub cause: Option<String>,
    /// The title, in one of its languages.
    pub title: String,
    pub created: Timestamp,
    /// Pending: when it continues. Processing: when the lease expires. Otherwise: since when it is in this state.
    pub due: Timestamp,
}

/// The queue of broadcasts. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Broadcasts(Unordered);

impl Broadcasts {
    pub fn new(db: &Db, config: &work_queue::Config, metrics: &work_queue::Metrics, clock: &Clock) -> Self {
        // One at a time per worker: each is long.
        let config = work_queue::Config { batch: 1, ..config.clone() };
        let queue =
            WorkQueue::new(BROADCAST, db.clone(), config, metrics.for_queue(BROADCAST), clock.clone());
        Self(queue.with_failure_hook(Arc::new(BroadcastDeadLetterHook)).unordered())
    }

    pub(crate) fn push(&self, tx: &mut Tx, id: Uuid, broadcast: &Broadcast) {
        // A struct of plain values always serializes.
        let payload = serde_json::to_vec(broadcast).unwrap_or_default();
        self.0.push(tx, &[NewItem { id, user: Uuid::nil(), key: &id.to_string(), payload: &payload }]);
    }

    /// Returns the work queue, to replay and discard dead letters.
    pub(crate) fn queue(&self) -> &WorkQueue {
        &self.0
    }

    /// Returns the progress of a broadcast. Returns none if it does not exist or is older than the queue's retention.
    pub async fn progress(&self, id: Uuid) -> Result<Option<Progress>, Error> {
        Ok(self.0.find(id).await?.map(progress))
    }

    /// Returns the texts of a broadcast: none if it does not exist or cannot be read.
    pub(crate) async fn texts(&self, id: Uuid) -> Result<Texts, Error> {
        let item = self.0.find(id).await?;
        let read = item.and_then(|item| serde_json::from_slice::<Broadcast>(&item.payload).ok());
        Ok(read.map(|broadcast| broadcast.message.texts).unwrap_or_default())
    }

    /// Lists broadcasts, newest first. With a state filter, those that are longest in the state come first.
    pub async fn list(&self, filter: Filter, limit: u32) -> Result<Vec<Progress>, Error> {
        Ok(self.0.list(filter, limit).await?.into_iter().map(progress).collect())
    }

    /// Stops a broadcast: it reaches no further player until it is resumed, even across restarts.
    pub async fn stop(&self, id: Uuid) -> Result<(), Error> {
        self.0.hold(id).await?.map_err(|error| decision_error(id, error))
    }

    /// Resumes a stopped broadcast after the last user who was notified.
    pub async fn resume(&self, id: Uuid) -> Result<(), Error> {
        self.0.resume(id).await?.map_err(|error| decision_error(id, error))
    }

    /// Works on broadcasts until `drain` is requested.
    pub async fn run(
        &self,
        process: ProcessId,
        notifications: Notifications,
        drain: Drain,
    ) -> Result<(), LoopError> {
        let handler = BroadcastHandler { queue: self.0.clone().into(), notifications, drain: drain.clone() };
        Worker::new(self.0.clone(), handler, process).run(drain).await
    }

    /// Removes finished broadcasts after the retention, until `drain` is requested.
    pub async fn run_retention(&self, drain: Drain) -> Result<(), LoopError> {
        RetentionCleaner::new(self.0.clone()).run(drain).await
    }
}

impl Notifications {
    /// Resumes a broadcast that was stopped or is a dead letter, after the last user who was notified.
    pub async fn resume_broadcast(&self, id: Uuid) -> Result<(), Error> {
        match self.replay(id, Duration::ZERO).await {
            Err(Error::DeadLetterNotFound(_)) => self.broadcasts().resume(id).await,
            result => result,
        }
    }
}

#[derive(Debug)]
struct BroadcastHandler {
    queue: WorkQueue,
    notifications: Notifications,
    drain: Drain,
}

impl Handler for BroadcastHandler {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let mut outcomes = Vec::with_capacity(items.len());
        for item in items {
            outcomes.push(self.send_to_all(item).await);
        }
        outcomes
    }
}

impl BroadcastHandler {
    async fn send_to_all(&self, item: &Item) -> ItemOutcome {
        let mut broadcast: Broadcast = match serde_json::from_slice(&item.payload) {
            Ok(broadcast) => broadcast,
            Err(cause) => {
                let corrupt = self.notifications.0.db.corrupt(BROADCAST, item.id, cause);
                return ItemOutcome::Failed(corrupt.to_string());
            }
        };
        let message = Arc::new(broadcast.message.clone());
        let mut has_progressed = false;
        loop {
            if self.drain.is_requested() {
                return ItemOutcome::NotAttempted("this process is stopping".to_owned());
            }
            match self.send_step(item, &mut broadcast, &message).await {
                Ok(Step::More) => has_progressed = true,
                Ok(Step::Done) => return ItemOutcome::Done,
                Ok(Step::LeaseLost) => {
                    return ItemOutcome::NotAttempted(
                        "another worker has claimed it, or an operator stopped it".to_owned(),
                    );
                }
                // The store failed, not the broadcast.
                Err(error) if error.is_transient() => return ItemOutcome::NotAttempted(chain(&error)),
                // The attempts of this item were counted before it made progress, so the next attempt counts as the first.
                Err(error) if has_progressed => {
                    return ItemOutcome::Postponed {
                        after: self.queue.config().retry.after(1),
                        cause: chain(&error),
                    };
                }
                Err(error) => return ItemOutcome::Retry(chain(&error)),
            }
        }
    }

    async fn send_step(
        &self,
        item: &Item,
        broadcast: &mut Broadcast,
        message: &Arc<Message>,
    ) -> Result<Step, Error> {
        let accounts: &Accounts = &self.notifications.0.accounts;
        let users = accounts.ids_after(broadcast.after.map(UserId::from_uuid), USERS_PER_STEP).await?;
        let Some(last) = users.last() else { return Ok(Step::Done) };
        let messages: Vec<AddressedMessage> =
            users.iter().map(|user| AddressedMessage::new(item.id, *user.as_uuid(), message)).collect();
        let next = Broadcast {
            after: Some(*last.as_uuid()),
            notified: broadcast.notified + users.len() as u64,
            message: broadcast.message.clone(),
        };
        let payload = serde_json::to_vec(&next).unwrap_or_default();
        let Some(created) = self.notifications.retrying(|| self.write(item, &payload, &messages)).await?
        else {
            return Ok(Step::LeaseLost);
        };
        fault::point("notification_broadcast.step");
        *broadcast = next;
        self.notifications.deliver(&created).await;
        Ok(Step::More)
    }

    /// Adds the messages and saves the progress in one transaction. Returns none if this worker has lost its lease.
    async fn write(
        &self,
        item: &Item,
        payload: &[u8],
        messages: &[AddressedMessage],
    ) -> Result<Option<CreatedBatch>, Error> {
        let mut tx = self.notifications.begin().await?;
        if !self.queue.save(&mut tx, item, payload).await? {
            return Ok(None);
        }
        let created = self.notifications.create(&mut tx, messages).await?;
        tx.commit().await?;
        Ok(Some(created))
    }
}

enum Step {
    More,
    Done,
    /// The lease has expired, or an operator stopped the broadcast.
    LeaseLost,
}

fn progress(item: ItemView) -> Progress {
    let read: Result<Broadcast, _> = serde_json::from_slice(&item.payload);
    let (notified, title, unreadable) = match read {
        Ok(Broadcast { message, notified, .. }) => {
            let title = message.texts.into_values().next().map(|text| text.title);
            (notified, title.unwrap_or_default(), None)
        }
        Err(cause) => (0, String::new(), Some(format!("the stored broadcast cannot be read: {cause}"))),
    };
    Progress {
        id: item.id,
        state: item.state,
        notified,
        attempts: item.attempts,
        cause: item.cause.or(unreadable),
        title,
        created: item.created,
        due: item.due,
    }
}

fn decision_error(id: Uuid, error: DecisionError) -> Error {
    match error {
        DecisionError::Unknown => Error::BroadcastNotFound(id),
        DecisionError::Finished | DecisionError::NotFailed => Error::NotPossible(format!(
            "the broadcast {id} cannot be stopped: it is done, already stopped, or a dead letter"
        )),
        DecisionError::NotHeld => {
            Error::NotPossible(format!("the broadcast {id} is not stopped: it is done, or still running"))
        }
    }
}

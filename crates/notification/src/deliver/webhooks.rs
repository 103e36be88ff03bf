//! Deliveries to webhook destinations.
//!
//! After a failure a destination backs off, and one update postpones everything that waits for it, so a failing destination does not
//! slow down the others. A destination that answers 410 Gone is disabled until an operator enables it. Deliveries to it become dead
//! letters.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::error::chain;
use base::id::Uuid;
use base::{Clock, Timestamp};
use bytes::Bytes;
use db::Db;
use futures::future::join_all;
use serde_json::json;
use webhook::{Destination, Message, SendOutcome};
use work_queue::{Handler, Item, ItemOutcome, KeyBackoff, WorkQueue};

use crate::model::{Channel, Notification};
use crate::{Error, store};

/// The longest random delay that is added to a wait, so that postponed deliveries do not all start at once.
const JITTER: Duration = Duration::from_millis(250);

/// All webhook destinations. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Webhooks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    clock: Clock,
    destinations: BTreeMap<String, Destination>,
}

/// The state of a destination, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationView {
    pub name: String,
    /// Since when it is disabled, and the cause.
    pub disabled: Option<(Timestamp, String)>,
    /// Until when it backs off after a failure, and how many deliveries wait.
    pub backoff: Option<KeyBackoff>,
}

impl Webhooks {
    pub fn new(
        db: Db,
        configs: &BTreeMap<String, webhook::Config>,
        clock: &Clock,
        metrics: &webhook::Metrics,
    ) -> Result<Self, webhook::Error> {
        let open = |(name, config): (&String, &webhook::Config)| {
            let destination = Destination::new(name, config.clone(), clock.clone(), metrics.clone())?;
            Ok::<_, webhook::Error>((name.clone(), destination))
        };
        let destinations = configs.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Inner { db, clock: clock.clone(), destinations })))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.destinations.keys().map(String::as_str)
    }

    pub(super) fn handler(&self, queue: WorkQueue) -> WebhookHandler {
        WebhookHandler { webhooks: self.clone(), queue }
    }

    /// Lists all destinations with their state. Every process returns the same, because waiting deliveries are postponed in the
    /// database.
    pub(super) async fn list(&self, queue: &WorkQueue) -> Result<Vec<DestinationView>, Error> {
        let mut disabled = store::disabled(&self.0.db).await?;
        let mut views = Vec::new();
        for name in self.names() {
            let backoff = queue.key_backoff(&Channel::Webhook(name.to_owned()).to_string()).await?;
            views.push(DestinationView { name: name.to_owned(), disabled: disabled.remove(name), backoff });
        }
        Ok(views)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.destinations.contains_key(name)
    }

    /// Returns since when a destination is disabled, and the cause. Returns none if it is enabled.
    pub(crate) async fn disabled(&self, name: &str) -> Result<Option<(Timestamp, String)>, Error> {
        Ok(store::disabled(&self.0.db).await?.remove(name))
    }

    /// Returns the disabled destinations, each with the time and the cause.
    pub(crate) async fn all_disabled(&self) -> Result<HashMap<String, (Timestamp, String)>, Error> {
        Ok(store::disabled(&self.0.db).await?)
    }

    /// Sends a test message to a destination, even if it backs off or is disabled. Returns how long it took; fails with the cause.
    pub(crate) async fn test(&self, name: &str) -> Result<Duration, String> {
        let destination = self.0.destinations.get(name).ok_or("there is no such destination")?;
        let id = Uuid::now_v7().to_string().parse().map_err(|_| "the message id is not valid")?;
        let body = json!({ "type": "test", "timestamp": self.0.clock.now().to_rfc3339(), "data": {} });
        let message = Message { id: &id, body: Bytes::from(body.to_string()), traceparent: None };
        destination.test(&message).await
    }

    /// Enables a destination. Returns whether it was disabled.
    pub async fn enable(&self, name: &str) -> Result<bool, Error> {
        Ok(store::enable(&self.0.db, name).await?)
    }
}

/// Sends the deliveries of the webhook queue.
#[derive(Debug)]
pub(super) struct WebhookHandler {
    webhooks: Webhooks,
    queue: WorkQueue,
}

impl Handler for WebhookHandler {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let disabled = match store::disabled(&self.webhooks.0.db).await {
            Ok(disabled) => disabled,
            Err(error) => return vec![ItemOutcome::NotAttempted(chain(&error)); items.len()],
        };
        join_all(items.iter().map(|item| self.send(item, &disabled))).await
    }
}

impl WebhookHandler {
    async fn send(&self, item: &Item, disabled: &HashMap<String, (Timestamp, String)>) -> ItemOutcome {
        let Ok(Channel::Webhook(name)) = item.key.parse() else {
            return ItemOutcome::Failed(format!("{:?} is not a webhook channel", item.key));
        };
        let Some(destination) = self.webhooks.0.destinations.get(&name) else {
            return ItemOutcome::Failed(format!(
                "[notification.webhooks.{name}] is no longer in the configuration"
            ));
        };
        if let Some((since, cause)) = disabled.get(&name) {
            return ItemOutcome::Failed(format!(
                "the destination has been disabled since {}: {cause}",
                since.to_rfc3339()
            ));
        }
        let notification: Notification = match serde_json::from_slice(&item.payload) {
            Ok(notification) => notification,
            Err(error) => return ItemOutcome::Failed(chain(&error)),
        };
        // A UUID is a valid message id.
        let Ok(id) = notification.notification_id.to_string().parse() else {
            return ItemOutcome::Failed("the notification id is not a valid message id".to_owned());
        };
        let traceparent = notification.traceparent.as_deref();
        let message = Message { id: &id, body: body(&notification), traceparent };
        match destination.send(&message).await {
            SendOutcome::Delivered => ItemOutcome::Done,
            SendOutcome::Deferred { wait } => ItemOutcome::Postponed {
                after: with_jitter(wait),
                cause: "the destination backs off, or has max_in_flight requests".to_owned(),
            },
            SendOutcome::Failed { cause, backoff, .. } => {
                self.postpone_waiting(&item.key, backoff).await;
                ItemOutcome::RetryAfter { after: with_jitter(backoff), cause }
            }
            SendOutcome::Gone { cause } => self.disable(&name, cause).await,
        }
    }

    /// Postpones everything that waits for the destination, so that no worker claims it before the backoff is over.
    async fn postpone_waiting(&self, key: &str, backoff: Duration) {
        if let Err(error) = self.queue.postpone_key(key, backoff).await {
            tracing::warn!(
                outage = "sql",
                cause = chain(&error),
                key,
                "cannot postpone the deliveries that wait for a failing webhook destination"
            );
        }
    }

    /// Disables a destination that answered 410 Gone.
    async fn disable(&self, name: &str, cause: String) -> ItemOutcome {
        match store::disable(&self.webhooks.0.db, name, &cause).await {
            Ok(was_enabled) => {
                // Other requests in flight get the same answer; one log line is enough.
                if was_enabled {
                    tracing::error!(
                        destination = name,
                        cause,
                        "a webhook destination answered 410 Gone and is disabled; once it is back, run \
                         `playhouse webhooks enable {name}`, then `playhouse dlq replay --destination webhook:{name}`"
                    );
                }
                ItemOutcome::Failed(cause)
            }
            Err(error) => ItemOutcome::Retry(chain(&error)),
        }
    }
}

fn with_jitter(wait: Duration) -> Duration {
    wait + JITTER.mul_f64(fastrand::f64())
}

/// Returns the body of a request, in the format that Standard Webhooks recommends.
fn body(notification: &Notification) -> Bytes {
    let time = |millis: i64| Timestamp::from_millis(millis).to_rfc3339();
    let body = json!({
        "type": "notification",
        "timestamp": time(notification.created_at),
        "data": {
            "notification_id": notification.notification_id,
            "user_id": notification.user_id,
            "position": notification.position,
            "template": notification.template,
            "texts": notification.texts,
            "data": notification.data,
            "created_at": time(notification.created_at),
            "expires_at": notification.expires_at.map(time),
        },
    });
    Bytes::from(body.to_string())
}

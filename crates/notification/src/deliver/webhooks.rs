//! To webhook destinations.
//!
//! A destination that fails is left alone for a while, and what waits for it is put off all at once, so that it costs the others
//! nothing. One that says that it is gone (410) is disabled until an operator enables it: what is for it meanwhile is a dead letter.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::error::chain;
use base::{Clock, Timestamp};
use bytes::Bytes;
use db::Db;
use futures::future::join_all;
use serde_json::json;
use webhook::{Destination, Message, Sent};
use work_queue::{Handler, Item, Outcome, Queue, Resting};

use crate::model::{Channel, Notification};
use crate::{Error, store};

/// Added to a wait by chance, so that not everything comes at once when it is over.
const SPREAD: Duration = Duration::from_millis(250);

/// All destinations. Clones are the same.
#[derive(Clone, Debug)]
pub struct Webhooks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    db: Db,
    destinations: BTreeMap<String, Destination>,
}

/// A destination as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub name: String,
    /// Since when it is disabled, and why.
    pub disabled: Option<(Timestamp, String)>,
    /// Until when it is left alone after a failure, and how many deliveries wait.
    pub resting: Option<Resting>,
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
        Ok(Self(Arc::new(Inner { db, destinations })))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.destinations.keys().map(String::as_str)
    }

    pub(super) fn handler(&self, queue: Queue) -> ToWebhooks {
        ToWebhooks { webhooks: self.clone(), queue }
    }

    /// All destinations, with those that are disabled or rest. Every process gives the same answer: what waits for a destination is
    /// put off in the database.
    pub(super) async fn list(&self, queue: &Queue) -> Result<Vec<Shown>, Error> {
        let mut disabled = store::disabled(&self.0.db).await?;
        let mut shown = Vec::new();
        for name in self.names() {
            let resting = queue.resting(&Channel::Webhook(name.to_owned()).to_string()).await?;
            shown.push(Shown { name: name.to_owned(), disabled: disabled.remove(name), resting });
        }
        Ok(shown)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.destinations.contains_key(name)
    }

    /// Returns since when a destination is disabled, and why.
    pub(crate) async fn disabled(&self, name: &str) -> Result<Option<(Timestamp, String)>, Error> {
        Ok(store::disabled(&self.0.db).await?.remove(name))
    }

    /// Enables a destination. Returns whether it was disabled.
    pub async fn enable(&self, name: &str) -> Result<bool, Error> {
        Ok(store::enable(&self.0.db, name).await?)
    }
}

/// Sends what is in the queue.
#[derive(Debug)]
pub(super) struct ToWebhooks {
    webhooks: Webhooks,
    queue: Queue,
}

impl Handler for ToWebhooks {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let disabled = match store::disabled(&self.webhooks.0.db).await {
            Ok(disabled) => disabled,
            Err(error) => return vec![Outcome::NotTried(chain(&error)); items.len()],
        };
        join_all(items.iter().map(|item| self.send(item, &disabled))).await
    }
}

impl ToWebhooks {
    async fn send(&self, item: &Item, disabled: &HashMap<String, (Timestamp, String)>) -> Outcome {
        let Ok(Channel::Webhook(name)) = item.key.parse() else {
            return Outcome::Failed(format!("{:?} is no webhook", item.key));
        };
        let Some(destination) = self.webhooks.0.destinations.get(&name) else {
            return Outcome::Failed(format!("there is no [notification.webhooks.{name}] any more"));
        };
        if let Some((since, cause)) = disabled.get(&name) {
            return Outcome::Failed(format!(
                "the destination is disabled since {}: {cause}",
                since.to_rfc3339()
            ));
        }
        let notification: Notification = match serde_json::from_slice(&item.payload) {
            Ok(notification) => notification,
            Err(error) => return Outcome::Failed(chain(&error)),
        };
        // A UUID can be one.
        let Ok(id) = notification.notification_id.to_string().parse() else {
            return Outcome::Failed("its id cannot be the id of a message".to_owned());
        };
        let traceparent = notification.traceparent.as_deref();
        let message = Message { id: &id, body: body(&notification), traceparent };
        match destination.send(&message).await {
            Sent::Delivered => Outcome::Done,
            Sent::NotNow { wait } => {
                Outcome::Later { after: spread(wait), cause: "the destination rests, or is busy".to_owned() }
            }
            Sent::Refused { cause, rest, .. } => {
                self.put_off(&item.key, rest).await;
                Outcome::AgainAfter { after: spread(rest), cause }
            }
            Sent::Gone { cause } => self.gone(&name, cause).await,
        }
    }

    /// What waits for the destination need not be looked at before it is asked again.
    async fn put_off(&self, key: &str, rest: Duration) {
        if let Err(error) = self.queue.put_off(key, rest).await {
            tracing::warn!(
                outage = "sql",
                cause = chain(&error),
                key,
                "what waits for a destination was not put off"
            );
        }
    }

    async fn gone(&self, name: &str, cause: String) -> Outcome {
        match store::disable(&self.webhooks.0.db, name, &cause).await {
            Ok(is_news) => {
                // Requests that were under way hear the same.
                if is_news {
                    tracing::error!(
                        destination = name,
                        cause,
                        "a webhook destination is gone and is disabled: when it is back, `playhouse webhooks enable {name}` and then \
                         `playhouse dlq replay --destination webhook:{name}`"
                    );
                }
                Outcome::Failed(cause)
            }
            Err(error) => Outcome::Again(chain(&error)),
        }
    }
}

fn spread(wait: Duration) -> Duration {
    wait + SPREAD.mul_f64(fastrand::f64())
}

/// What a destination gets: the form that Standard Webhooks recommends.
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

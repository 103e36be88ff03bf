//! Deliveries to the player's streams.

use base::error::chain;
use live::{Live, Player};
use work_queue::{Handler, Item, Outcome};

use crate::model::Notification;
use crate::topics::NotificationAdded;

/// Publishes notifications that the process which made them did not publish.
#[derive(Debug)]
pub(super) struct ToStreams(pub(super) Live);

impl Handler for ToStreams {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let read: Vec<Result<Notification, _>> =
            items.iter().map(|item| serde_json::from_slice(&item.payload)).collect();
        let published = publish(&self.0, read.iter().flatten()).await;
        let outcome = |read| match (read, &published) {
            (Err(error), _) => Outcome::Failed(chain(&error)),
            (Ok(_), Ok(_)) => Outcome::Done,
            // The fault is in Redis, not in the notification.
            (Ok(_), Err(error)) => Outcome::NotTried(chain(error)),
        };
        read.into_iter().map(outcome).collect()
    }
}

/// Publishes notifications to the streams of their players.
pub(super) async fn publish(
    live: &Live,
    notifications: impl Iterator<Item = &Notification>,
) -> Result<(), redis_store::Error> {
    let messages = notifications.map(|one| (Player(one.user_id), one.clone())).collect();
    live.publish_all::<NotificationAdded>(messages).await.map(drop)
}

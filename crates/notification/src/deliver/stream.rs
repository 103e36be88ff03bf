//! Deliveries to the player's streams.

use base::error::chain;
use live::{Live, Player};
use work_queue::{Handler, Item, ItemOutcome};

use crate::model::Notification;
use crate::topics::NotificationAdded;

/// Publishes notifications that the process that created them did not publish.
#[derive(Debug)]
pub(super) struct StreamHandler(pub(super) Live);

impl Handler for StreamHandler {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let read: Vec<Result<Notification, _>> =
            items.iter().map(|item| serde_json::from_slice(&item.payload)).collect();
        let published = publish(&self.0, read.iter().flatten()).await;
        let outcome = |read| match (read, &published) {
            (Err(error), _) => ItemOutcome::Failed(chain(&error)),
            (Ok(_), Ok(_)) => ItemOutcome::Done,
            // Redis failed, not the notification.
            (Ok(_), Err(error)) => ItemOutcome::NotAttempted(chain(error)),
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

//! To the player's streams.

use base::error::chain;
use base::id::Uuid;
use work_queue::{Handler, Item, Outcome};

use crate::live::{Live, Told};
use crate::model::Notification;

/// Tells the streams what somebody else did not come to tell.
#[derive(Debug)]
pub(super) struct ToStreams(pub(super) Live);

impl Handler for ToStreams {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let read: Vec<Result<Notification, _>> =
            items.iter().map(|item| serde_json::from_slice(&item.payload)).collect();
        let all: Vec<_> = read.iter().flatten().cloned().map(news).collect();
        let told = self.0.tell(&all).await;
        let outcome = |read| match (read, &told) {
            (Err(error), _) => Outcome::Failed(chain(&error)),
            (Ok(_), Ok(_)) => Outcome::Done,
            // That is Redis, not the notification.
            (Ok(_), Err(error)) => Outcome::NotTried(chain(error)),
        };
        read.into_iter().map(outcome).collect()
    }
}

pub(super) fn news(notification: Notification) -> (Uuid, Told) {
    (notification.user_id, Told::Notification(Box::new(notification)))
}

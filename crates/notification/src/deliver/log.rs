//! Deliveries to the log.

use base::error::chain;
use work_queue::{Handler, Item, ItemOutcome};

use crate::model::Notification;

/// Logs one line per notification.
#[derive(Debug)]
pub(super) struct LogHandler;

impl Handler for LogHandler {
    async fn handle(&self, items: &[Item]) -> Vec<ItemOutcome> {
        let log = |item: &Item| match serde_json::from_slice::<Notification>(&item.payload) {
            Err(error) => ItemOutcome::Failed(chain(&error)),
            Ok(notification) => {
                let title = notification.text(&[]).map(|(_, text)| text.title.as_str());
                tracing::info!(
                    notification = %notification.notification_id,
                    user = %notification.user_id,
                    template = notification.template,
                    title,
                    "notification"
                );
                ItemOutcome::Done
            }
        };
        items.iter().map(log).collect()
    }
}

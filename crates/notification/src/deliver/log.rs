//! To the log.

use base::error::chain;
use work_queue::{Handler, Item, Outcome};

use crate::model::Notification;

/// Writes a line for each.
#[derive(Debug)]
pub(super) struct ToLog;

impl Handler for ToLog {
    async fn handle(&self, items: &[Item]) -> Vec<Outcome> {
        let log = |item: &Item| match serde_json::from_slice::<Notification>(&item.payload) {
            Err(error) => Outcome::Failed(chain(&error)),
            Ok(notification) => {
                let title = notification.text(&[]).map(|(_, text)| text.title.as_str());
                tracing::info!(
                    notification = %notification.notification_id,
                    user = %notification.user_id,
                    template = notification.template,
                    title,
                    "notification"
                );
                Outcome::Done
            }
        };
        items.iter().map(log).collect()
    }
}

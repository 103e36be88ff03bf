//! What operators read in the log of events that have failed for good.

use db::Tx;
use work_queue::{FailedItem, OnFailed};

/// Logs each event that has failed, with what to do.
#[derive(Debug)]
pub(crate) struct LogFailed;

impl OnFailed for LogFailed {
    /// The row itself says everything.
    fn failed(&self, _: &mut Tx, _: FailedItem<'_>) {}

    fn committed(&self, FailedItem { item, cause }: FailedItem<'_>) {
        let id = item.id;
        tracing::error!(
            event = %id, key = item.key, attempts = item.attempts, cause,
            "an event is FAILED, and later events of its key wait behind it: look at it with `playhouse outbox show {id}`, then \
             `playhouse outbox retry {id}`, or give it up with `playhouse outbox skip {id}`"
        );
    }
}

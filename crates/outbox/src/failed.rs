//! Logs events that failed for good.

use db::Tx;
use work_queue::{FailedItem, FailureHook};

/// Logs each failed event with the commands that resolve it.
#[derive(Debug)]
pub(crate) struct LogFailed;

impl FailureHook for LogFailed {
    /// Adds nothing: the row itself holds all the facts.
    fn record_failure(&self, _: &mut Tx, _: FailedItem<'_>) {}

    fn committed(&self, FailedItem { item, cause }: FailedItem<'_>) {
        let id = item.id;
        tracing::error!(
            event = %id, key = item.key, attempts = item.attempts, cause,
            "an event is FAILED and blocks the later events of its key: inspect it with `playhouse outbox show {id}`, then run \
             `playhouse outbox retry {id}`, or give it up with `playhouse outbox skip {id}`"
        );
    }
}

//! The status of notifications, for `playhouse status`.

use base::finding::Finding;
use service::{Lease, ServiceStatus, StatusError};

use crate::Notifications;
use crate::console::WEBHOOKS;
use crate::deliver::WEBHOOK;

/// How many failing destinations are reported.
const MAX_FAILING: u32 = 100;

pub(crate) async fn status(notifications: &Notifications) -> Result<ServiceStatus, StatusError> {
    let mut status = ServiceStatus::default();
    let dead_letters: i64 = notifications.count_dead_letters().await?.iter().map(|(_, count)| count).sum();
    status.findings.push(Finding::check(dead_letters == 0, "there are no dead letters", || {
        let advice = "`playhouse dlq list` shows the causes; then run `playhouse dlq replay` or `playhouse dlq discard`";
        Finding::warning(format!("dead letters that wait for an operator: {dead_letters}"), advice)
    }));
    for destination in notifications.deliveries().destinations().await? {
        let Some((since, cause)) = destination.disabled else { continue };
        let what = format!(
            "the webhook destination {} has been disabled since {}: {cause}",
            destination.name,
            since.to_rfc3339()
        );
        let advice = format!("once it answers again, run `playhouse webhooks enable {}`", destination.name);
        status.findings.push(Finding::failure(what, advice).on_screen(WEBHOOKS));
    }
    let deliveries = notifications.deliveries();
    for queue in deliveries.queues() {
        let overview = queue.overview().await?;
        let lease = |(holder, items)| Lease { holder, queue: queue.name(), items };
        status.leases.extend(overview.leases.into_iter().map(lease));
        if queue.name() != WEBHOOK {
            continue;
        }
        for failing in queue.retrying_keys(MAX_FAILING).await? {
            let what = format!(
                "deliveries to {} that failed and will be retried: {}, the next one at {}: {}",
                failing.key,
                failing.items,
                failing.next.to_rfc3339(),
                failing.cause
            );
            let advice = "retries are automatic; repair the destination";
            status.findings.push(Finding::warning(what, advice).on_screen(WEBHOOKS));
        }
    }
    Ok(status)
}

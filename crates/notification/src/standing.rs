//! How notifications stand, for `playhouse status`.

use base::finding::Finding;
use service::{Lease, Standing, StandingError};

use crate::Notifications;
use crate::deliver::WEBHOOK;

/// How many destinations are looked at.
const LOOKED_AT: u32 = 100;

pub(crate) async fn standing(notifications: &Notifications) -> Result<Standing, StandingError> {
    let mut standing = Standing::default();
    let letters: i64 = notifications.count_letters().await?.iter().map(|(_, count)| count).sum();
    standing.findings.push(Finding::when(letters == 0, "there are no dead letters", || {
        let advice = "`playhouse dlq list` shows why; then `playhouse dlq replay` or `discard`";
        Finding::warning(format!("dead letters that wait for a decision: {letters}"), advice)
    }));
    for shown in notifications.deliveries().destinations().await? {
        let Some((since, cause)) = shown.disabled else { continue };
        let what = format!("the webhook {} is disabled since {}: {cause}", shown.name, since.to_rfc3339());
        let advice = format!("once it answers again: `playhouse webhooks enable {}`", shown.name);
        standing.findings.push(Finding::failure(what, advice));
    }
    let deliveries = notifications.deliveries();
    for queue in deliveries.queues() {
        let overview = queue.overview().await?;
        let lease = |(holder, items)| Lease { holder, queue: queue.name(), items };
        standing.leases.extend(overview.leases.into_iter().map(lease));
        if queue.name() != WEBHOOK {
            continue;
        }
        for troubled in queue.troubled_keys(LOOKED_AT).await? {
            let what = format!(
                "deliveries to {} that failed and wait: {}, the next until {}: {}",
                troubled.key,
                troubled.items,
                troubled.next.to_rfc3339(),
                troubled.cause
            );
            let advice = "they are tried again by themselves; see to the destination";
            standing.findings.push(Finding::warning(what, advice));
        }
    }
    Ok(standing)
}

//! The state of the outbox for `playhouse status`.

use std::collections::HashSet;
use std::time::Duration;

use base::finding::Finding;
use service::{Lease, ServiceStatus, StatusError};
use work_queue::{Filter, ItemView};

use crate::Outbox;

/// An event that has been due for this long has no relay, or one that is far behind.
const LATE: Duration = Duration::from_secs(60);

/// How many failed events are examined for the events behind them.
const MAX_FAILED: u32 = 20;
/// How many of the events behind them are counted. The status is read every few seconds.
const MAX_BEHIND: u64 = 10_000;

pub(crate) async fn status(outbox: &Outbox) -> Result<ServiceStatus, StatusError> {
    let queue = outbox.queue();
    let overview = queue.overview().await?;
    let mut findings = Vec::new();
    if overview.failed > 0 {
        let failed = queue.list(Filter::Failed, MAX_FAILED).await?;
        let behind = count_behind(outbox, &failed).await?;
        let is_more = behind > MAX_BEHIND || overview.failed > failed.len() as u64;
        let (behind, more) = (behind.min(MAX_BEHIND), if is_more { "+" } else { "" });
        let cause = failed.first().and_then(|item| item.cause.as_deref()).unwrap_or("unknown cause");
        let what = format!(
            "failed events: {}; events blocked behind them: {behind}{more}; {cause}",
            overview.failed
        );
        let advice =
            "list them with `playhouse outbox blocked`, retry one with `playhouse outbox retry EVENT`";
        findings.push(Finding::failure(what, advice));
    }
    if let Some(late) = overview.late.filter(|late| *late >= LATE) {
        let what = format!("the next event has been due for {} s", late.as_secs());
        let advice = "check that a process with the role outbox-relay runs, and that the bus answers";
        findings.push(Finding::warning(what, advice));
    }
    if findings.is_empty() {
        findings.push(Finding::good("no event is failed or late"));
    }
    let lease = |(holder, items)| Lease { holder, queue: queue.name(), items };
    Ok(ServiceStatus { findings, leases: overview.leases.into_iter().map(lease).collect() })
}

/// Counts the events that wait behind failed ones, each key once, and stops above [`MAX_BEHIND`].
async fn count_behind(outbox: &Outbox, failed: &[ItemView]) -> Result<u64, StatusError> {
    let (mut behind, mut keys) = (0, HashSet::new());
    for item in failed.iter().filter(|item| keys.insert(item.key.as_str())) {
        behind += outbox.queue().count_behind(item, MAX_BEHIND.saturating_sub(behind)).await?;
    }
    Ok(behind)
}

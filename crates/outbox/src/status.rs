//! The state of the outbox for `playhouse status`.

use std::time::Duration;

use base::finding::Finding;
use service::{Lease, ServiceStatus, StatusError};

use crate::Outbox;

/// An event that has been due for this long has no relay, or one that is far behind.
const LATE: Duration = Duration::from_secs(60);

/// How many blocked keys are counted at most.
const MAX_KEYS: u32 = 1_000;

pub(crate) async fn status(outbox: &Outbox) -> Result<ServiceStatus, StatusError> {
    let queue = outbox.queue();
    let overview = queue.overview().await?;
    let mut findings = Vec::new();
    if overview.failed > 0 {
        let blocked = queue.blocked_keys(MAX_KEYS).await?;
        let waiting: u64 = blocked.iter().map(|key| key.waiting).sum();
        let cause = blocked.first().and_then(|key| key.cause.as_deref()).unwrap_or("unknown cause");
        let what =
            format!("failed events: {}; events blocked behind them: {waiting}; {cause}", overview.failed);
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

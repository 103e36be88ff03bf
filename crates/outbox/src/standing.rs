//! How the outbox stands, for `playhouse status`.

use std::time::Duration;

use base::finding::Finding;
use service::{Lease, Standing, StandingError};

use crate::Outbox;

/// An event that nobody has taken for so long has no relay, or one that is far behind.
const LATE: Duration = Duration::from_secs(60);

/// How many blocked keys are counted.
const COUNTED: u32 = 1_000;

pub(crate) async fn standing(outbox: &Outbox) -> Result<Standing, StandingError> {
    let queue = outbox.queue();
    let overview = queue.overview().await?;
    let mut findings = Vec::new();
    if overview.failed > 0 {
        let blocked = queue.blocked_keys(COUNTED).await?;
        let waiting: u64 = blocked.iter().map(|key| key.waiting).sum();
        let cause = blocked.first().and_then(|key| key.cause.as_deref()).unwrap_or("no cause is known");
        let what =
            format!("failed events: {}; events that wait behind them: {waiting}; {cause}", overview.failed);
        let advice = "`playhouse outbox blocked` lists them, `playhouse outbox retry EVENT` tries one again";
        findings.push(Finding::failure(what, advice));
    }
    if let Some(late) = overview.late.filter(|late| *late >= LATE) {
        let what = format!("the next event has been due for {} s", late.as_secs());
        let advice = "is a process with the role outbox-relay running, and does the bus answer?";
        findings.push(Finding::warning(what, advice));
    }
    if findings.is_empty() {
        findings.push(Finding::good("no event has failed or is late"));
    }
    let lease = |(holder, items)| Lease { holder, queue: queue.name(), items };
    Ok(Standing { findings, leases: overview.leases.into_iter().map(lease).collect() })
}

//! The findings about drops that `playhouse status` shows.

use base::finding::Finding;
use service::{ServiceStatus, StatusError};

use crate::orders::{ListRefunds, Orders, RefundPage};

/// How many refunds are counted at most.
const MAX_COUNTED: u32 = 1_000;

pub(crate) async fn read_findings(orders: &Orders) -> Result<ServiceStatus, StatusError> {
    let which = ListRefunds { limit: MAX_COUNTED, ..ListRefunds::default() };
    let RefundPage { refunds: due, next } = orders.refunds_due(&which).await?;
    let finding = Finding::check(due.is_empty(), "no refund is due", || {
        let since = due.first().map(|due| due.since.to_rfc3339()).unwrap_or_default();
        let more = if next.is_some() { " or more" } else { "" };
        let what = format!("payments that must be refunded: {}{more}, the first since {since}", due.len());
        Finding::warning(what, "`playhouse drops refunds` lists them; `settle` marks one that you refunded")
    });
    Ok(ServiceStatus { findings: vec![finding], leases: Vec::new() })
}

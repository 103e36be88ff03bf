//! The findings about drops that `playhouse status` shows.

use base::finding::Finding;
use service::{ServiceStatus, StatusError};

use crate::orders::Orders;

/// How many refunds are counted at most.
const MAX_COUNTED: u32 = 1_000;

pub(crate) async fn read_findings(orders: &Orders) -> Result<ServiceStatus, StatusError> {
    let due = orders.refunds_due(MAX_COUNTED).await?;
    let finding = Finding::check(due.is_empty(), "no refund is due", || {
        let since = due.first().map(|due| due.since.to_rfc3339()).unwrap_or_default();
        let more = if due.len() == MAX_COUNTED as usize { " or more" } else { "" };
        let what = format!("payments that must be refunded: {}{more}, the first since {since}", due.len());
        Finding::warning(what, "`playhouse drops refunds` lists them; `settle` marks one that you refunded")
    });
    Ok(ServiceStatus { findings: vec![finding], leases: Vec::new() })
}

//! How drops stand, for `playhouse status`.

use base::finding::Finding;
use service::{Standing, StandingError};

use crate::orders::Orders;

/// How many refunds are counted.
const COUNTED: u32 = 1_000;

pub(crate) async fn standing(orders: &Orders) -> Result<Standing, StandingError> {
    let due = orders.refunds_due(COUNTED).await?;
    let finding = Finding::when(due.is_empty(), "no refund is due", || {
        let since = due.first().map(|due| due.since.to_rfc3339()).unwrap_or_default();
        let more = if due.len() == COUNTED as usize { " or more" } else { "" };
        let what = format!("payments that must be refunded: {}{more}, the first since {since}", due.len());
        Finding::warning(what, "`playhouse drops refunds` lists them; `settle` marks one that you refunded")
    });
    Ok(Standing { findings: vec![finding], leases: Vec::new() })
}

//! The processor time of a server without load.

use std::time::{Duration, Instant};

use testkit::bench::Report;

use crate::fleet::Fleet;

/// How long the product gets to become idle.
const SETTLE: Duration = Duration::from_secs(10);

/// Measures the idle server and adds it to the report. Returns the product's share of a core in percent.
pub(crate) async fn measure(fleet: &Fleet, length: Duration, what: &str, report: &mut Report) -> f64 {
    tokio::time::sleep(SETTLE).await;
    let (before, began) = (fleet.cpu(), Instant::now());
    tokio::time::sleep(length).await;
    let (used, took) = (fleet.cpu().since(before), began.elapsed().as_secs_f64());
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / took;
    report.row([
        format!("idle, {what}"),
        format!("{:.2} % CPU", percent(used.product)),
        String::new(),
        format!("SQL {:.2} %, Redis {:.2} %", percent(used.sql), percent(used.redis)),
    ]);
    percent(used.product)
}

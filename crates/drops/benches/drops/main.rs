//! What a reserve costs on one hot item, on MariaDB, beside other ways to keep a stock in the same run.
//!
//! Ways that are compared take turns, so that a busy machine disturbs them alike; the median of the turns counts.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has failed")]

mod reserves;

use testkit::bench::Report;

#[tokio::main]
async fn main() {
    let mut report =
        Report::new("drops").columns(["reserves/s on one item", "1 task", "64 tasks", "256 tasks"]);
    let ratio = reserves::run(&mut report).await;
    report.finish(ratio).unwrap();
}

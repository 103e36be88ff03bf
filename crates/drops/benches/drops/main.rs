//! The waiting room at a million players, and the rate of reserves on one hot item, compared with other designs of a stock in the same run.
//!
//! Compared designs take turns, so that load on the machine affects them alike. The median of the turns counts.
//!
//! The argument `room`, `reserves` or `purchases` runs only that part. `small` is a quick check that runs with few players.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod purchases;
mod reserves;
mod room;

use testkit::bench::Report;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let (size, parts): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| *arg == "small");
    let size = if size.is_empty() { room::Size::FULL } else { room::Size::SMALL };
    let is_wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    let mut report =
        Report::new("drops").columns(["reserves/s on one item", "1 task", "64 tasks", "256 tasks"]);
    if is_wanted("room") {
        room::run(&mut report, size).await;
    }
    let ratio = if is_wanted("reserves") { Some(reserves::run(&mut report).await) } else { None };
    if is_wanted("purchases") {
        purchases::run(&mut report).await;
    }
    report.finish(ratio).unwrap();
}

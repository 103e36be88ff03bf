//! The waiting room at a million players, and what a reserve costs on one hot item beside other ways to keep a stock in the same run.
//!
//! Ways that are compared take turns, so that a busy machine disturbs them alike; the median of the turns counts.
//!
//! `room`, `reserves` or `purchases` as an argument runs that part only; `small` runs it with few players, to see whether it runs.

#![expect(clippy::unwrap_used, reason = "a benchmark that fails has failed")]

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

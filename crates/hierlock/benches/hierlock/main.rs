//! The cost of a lock on MariaDB: hierlock, a naive client, and the lower bound, in the same run.
//!
//! The methods take turns, so that other load on the machine affects them alike. The median of the turns counts. Arguments choose parts:
//! `rates`, `designs`, `provision`; without arguments all of them run.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod designs;
mod provision;
mod rates;
mod worker;

use testkit::bench::Report;
use testkit::{Flavour, SqlServer};

#[tokio::main]
async fn main() {
    // Cargo adds `--bench`.
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let mut report =
        Report::new("hierlock").columns(["what", "tasks", "ours/s", "reference/s", "ratio", "reference"]);
    let mut ratio = None;
    if is_wanted("rates") {
        ratio = Some(rates::run(&server(Flavour::Mariadb).await, &mut report).await);
    }
    if is_wanted("designs") {
        designs::run(&server(Flavour::Mariadb).await, &mut report).await;
    }
    if is_wanted("provision") {
        for flavour in [Flavour::Mariadb, Flavour::Mysql] {
            match builder(flavour).start().await {
                Ok(server) => provision::run(&server, &mut report).await,
                Err(error) => eprintln!("skipping {flavour:?}: {error}"),
            }
        }
    }
    report.finish(ratio).unwrap();
}

async fn server(flavour: Flavour) -> SqlServer {
    builder(flavour).start().await.unwrap()
}

/// Returns a builder with settings as in production: commits are synced, and the working set fits into memory.
fn builder(flavour: Flavour) -> testkit::SqlBuilder {
    SqlServer::builder(flavour).durable().arg("--innodb-buffer-pool-size=1G")
}

/// Adds a row to the report and returns the ratio.
fn add_row(report: &mut Report, what: &str, tasks: usize, ours: f64, reference: f64, name: &str) -> f64 {
    let ratio = ours / reference;
    eprintln!("{what}, {tasks} tasks: {ours:.0}/s, {ratio:.2} times {name}");
    report.row([
        what.to_owned(),
        tasks.to_string(),
        format!("{ours:.0}"),
        format!("{reference:.0}"),
        format!("{ratio:.2}"),
        name.to_owned(),
    ]);
    ratio
}

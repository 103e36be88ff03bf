//! Measures the way of a grant to the event stream on MariaDB and NATS. Each step is compared with a reference in the same run.
//!
//! A step and its reference alternate in rounds, so that load on the machine affects both alike. The median of the rounds counts.
//! Arguments select parts: `grants`, `drain`, `latency`, `claims`. Without arguments, all parts run.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

mod claims;
mod drain;
mod grants;
mod latency;

use std::time::Duration;

use base::{Backoff, Clock};
use bus::{Bus, BusUrl};
use config::{Setting, Value};
use db::{Db, DbUrl};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use testkit::bench::Report;
use testkit::{Database, Flavour, Nats, SqlServer};

#[tokio::main]
async fn main() {
    // Cargo adds `--bench`.
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let is_selected = |part: &str| parts.is_empty() || parts.iter().any(|selected| selected == part);
    let mut report =
        Report::new("outbox").columns(["what", "ours", "reference", "ratio", "goal", "reference is"]);
    let mut ratio = None;
    if is_selected("grants") {
        grants::run(&mut report).await;
    }
    if is_selected("claims") {
        claims::run(&mut report).await;
    }
    if is_selected("latency") {
        latency::run(&mut report).await;
    }
    if is_selected("drain") {
        ratio = Some(drain::run(&mut report).await);
    }
    report.finish(ratio).unwrap();
}

/// Starts a server as in production: commits are synced, and the working set fits into memory.
async fn server() -> SqlServer {
    SqlServer::builder(Flavour::Mariadb).durable().arg("--innodb-buffer-pool-size=2G").start().await.unwrap()
}

async fn open(database: &Database, max_connections: u32) -> (Db, db::Config) {
    let url = DbUrl::parse(&Value::Text(database.url().to_owned())).unwrap();
    let config = db::Config { url, max_connections, acquire_timeout: Duration::from_secs(30), migrate: true };
    let db = Db::open(&config).await.unwrap();
    let all = [db::MIGRATIONS, outbox::MIGRATIONS, account::MIGRATIONS, entitlement::MIGRATIONS];
    db.migrate(&all).await.unwrap();
    (db, config)
}

/// Returns the values of the reference configuration.
fn queue_config() -> outbox::Config {
    outbox::Config {
        workers: 3,
        batch: 500,
        poll: Duration::from_millis(200),
        lease: Duration::from_secs(30),
        max_attempts: 20,
        retry: Backoff::new(Duration::from_millis(100), Duration::from_secs(30)),
        retention: Duration::from_secs(86_400),
    }
}

fn outbox(db: &Db, config: outbox::Config) -> Outbox {
    let metrics = outbox::Metrics::new(&mut Registry::default(), "outbox");
    Outbox::new(db.clone(), config, metrics, clock())
}

async fn nats() -> (Nats, Bus) {
    let nats = Nats::private().await.unwrap();
    let bus = Bus::open(&bus_config(&nats)).await.unwrap();
    (nats, bus)
}

fn bus_config(nats: &Nats) -> bus::Config {
    bus::Config {
        url: BusUrl::parse(&Value::Text(nats.url())).unwrap(),
        timeout: Duration::from_secs(10),
        stream: "PLAYHOUSE".to_owned(),
        subjects: "playhouse".to_owned(),
        max_age: Duration::from_secs(604_800),
        replicas: 1,
        max_in_flight: 1000,
        memory_events: 100_000,
        credentials: None,
        monitor_url: None,
    }
}

fn clock() -> Clock {
    Clock::system()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Adds a row to the report and returns the ratio of the two values.
fn add_row(report: &mut Report, what: &str, ours: f64, reference: f64, goal: &str, name: &str) -> f64 {
    let ratio = ours / reference;
    eprintln!("{what}: {ours:.0}, {ratio:.2} of {reference:.0} ({name}; goal {goal})");
    report.row([
        what.to_owned(),
        format!("{ours:.0}"),
        format!("{reference:.0}"),
        format!("{ratio:.2}"),
        goal.to_owned(),
        name.to_owned(),
    ]);
    ratio
}

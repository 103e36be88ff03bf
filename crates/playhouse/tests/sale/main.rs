//! One whole sale through the front door: players join, wait, are admitted, reserve, pay and own the item, while servers and
//! processes die. Every unit is sold once, and every player learns how it ended.
//!
//! A binary of its own: it takes both cores, and reports how long the sale took.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod api;
mod fleet;
mod player;
mod sale;
mod size;
mod verdict;

use std::io::Write;
use std::time::Duration;

use testkit::{Program, need};

use fleet::{Fleet, Laptop};
use sale::Sale;
use size::Size;

/// The token of the operator who sells.
const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a fault may keep a fleet from answering, on a machine that has thousands of players beside it.
const OUTAGE: Duration = Duration::from_secs(120);

fn playhouse(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// Prints a line even if the test passes: the test runner captures `println!`.
fn show(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Three processes on MariaDB, Redis and NATS. Redis is emptied, MariaDB is killed and restarted, one process is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_on_a_fleet_survives_faults_and_sells_every_unit_once() {
    let size = Size::asked();
    let mut fleet = need!(Fleet::start().await);
    let sale = Sale::open(fleet.place(), &size).await;
    sale.has_sold(size.units / 4).await;
    fleet.empty_redis().await;
    sale.has_sold(size.units / 2).await;
    fleet.restart_sql().await;
    sale.has_sold(size.units * 3 / 4).await;
    fleet.kill_a_process();
    let verdict = sale.finish().await;
    let events = fleet.events().await;
    show(&format!(
        "fleet of three, Redis emptied, MariaDB restarted, one process killed: {}",
        verdict.check(&size, Some(&events))
    ));
}

/// One process on SQLite, everything else embedded.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_in_one_process_sells_every_unit_once() {
    let size = Size::asked();
    let laptop = need!(Laptop::start().await);
    let sale = Sale::open(laptop.place(), &size).await;
    let verdict = sale.finish().await;
    laptop.has_published_everything().await;
    show(&format!("one process on SQLite: {}", verdict.check(&size, None)));
}

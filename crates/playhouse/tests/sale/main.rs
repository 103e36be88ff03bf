//! A whole sale through the gateway: players join, wait, are admitted, reserve, pay and own the item, while servers and processes
//! are killed. Every unit is sold once, and every player is notified of the result.
//!
//! A separate test binary, because it uses all cores and reports how long the sale took.

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

use fleet::{Fleet, SingleProcess};
use sale::Sale;
use size::Size;

/// The token of the operator who runs the sale.
const OPERATOR_TOKEN: &str = "ph_operator-for-tests-only";
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a fault may keep the fleet from answering, on a machine that also simulates thousands of players.
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
async fn fleet_sells_every_unit_once_despite_faults() {
    let size = Size::from_env();
    let mut fleet = need!(Fleet::start().await);
    let sale = Sale::open(fleet.access(), &size).await;
    sale.wait_until_sold(size.units / 4).await;
    fleet.empty_redis().await;
    sale.wait_until_sold(size.units / 2).await;
    fleet.restart_sql().await;
    sale.wait_until_sold(size.units * 3 / 4).await;
    fleet.kill_one_process();
    let verdict = sale.finish().await;
    let events = fleet.events().await;
    show(&format!(
        "fleet of three, Redis emptied, MariaDB restarted, one process killed: {}",
        verdict.check(&size, Some(&events))
    ));
}

/// One process with embedded stores.
#[tokio::test(flavor = "multi_thread")]
async fn single_process_sells_every_unit_once() {
    let size = Size::from_env();
    let process = need!(SingleProcess::start().await);
    let sale = Sale::open(process.access(), &size).await;
    let verdict = sale.finish().await;
    process.wait_until_all_is_published().await;
    show(&format!("one process on SQLite: {}", verdict.check(&size, None)));
}

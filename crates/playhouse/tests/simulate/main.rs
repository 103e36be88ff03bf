//! `playhouse simulate` against real processes: it passes on a healthy instance, also while its processes are killed, and finds every
//! fault that is planted on purpose.
//!
//! A separate test binary, because it uses all cores.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod faults;
mod outages;
mod planted;
mod progress;
mod scenarios;
mod tokens;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testkit::{Folder, OutputStream, Program, RunningProgram};

const PATIENCE: Duration = Duration::from_secs(60);

fn playhouse(args: &[&str]) -> Program {
    Program::new(env!("CARGO_BIN_EXE_playhouse")).args(args.iter().copied())
}

/// `playhouse dev` on free ports.
struct Dev {
    running: RunningProgram,
    addresses: HashMap<String, String>,
}

impl Dev {
    async fn start(change: impl FnOnce(Program) -> Program) -> Self {
        let ports = ["gateway", "service-api", "admin", "open-match"]
            .map(|name| [format!("--{name}-port"), "0".to_owned()]);
        let mut args = vec!["dev".to_owned(), "--ephemeral".to_owned(), "--print-addresses".to_owned()];
        args.extend(ports.into_iter().flatten());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let running = change(playhouse(&args)).start().unwrap();
        Self::new(running).await
    }

    async fn new(running: RunningProgram) -> Self {
        let line = running.wait_for_line("\"admin\":", PATIENCE).await;
        Self { addresses: serde_json::from_str(&line).unwrap(), running }
    }

    /// Runs the simulator against this process, with the report in `folder`.
    async fn simulate(&self, folder: &Folder, args: &[&str]) -> (Option<i32>, String, Value) {
        simulate(folder, &[&self.own_args(), args].concat()).await
    }

    /// Returns the arguments that lead the simulator to this process.
    fn own_args(&self) -> [&str; 4] {
        ["--gateway", &self.addresses["gateway"], "--admin", &self.addresses["admin"]]
    }
}

/// Runs the simulator. Returns its exit code, its report as text, and as JSON.
async fn simulate(folder: &Folder, args: &[&str]) -> (Option<i32>, String, Value) {
    finished(folder, &simulator(folder, args).start().unwrap()).await
}

/// Returns a run of the simulator with its report in `folder`.
fn simulator(folder: &Folder, args: &[&str]) -> Program {
    let json = folder.path().join("report.json");
    playhouse(&["simulate", "--json"]).arg(json).args(args.iter().copied())
}

/// Waits until the simulator has ended.
async fn finished(folder: &Folder, running: &RunningProgram) -> (Option<i32>, String, Value) {
    let status = running.wait(Duration::from_secs(240)).await;
    let report = std::fs::read_to_string(folder.path().join("report.json")).ok();
    let report: Option<Value> = report.and_then(|text| serde_json::from_str(&text).ok());
    let text = format!("{}\n{}", running.text(OutputStream::Stdout), running.text(OutputStream::Stderr));
    (status.code(), text, report.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn healthy_instance_keeps_every_promise() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let html = folder.path().join("report.html");
    // Everybody pays: a unit that is not paid for may become available when nobody looks for one any more.
    let args = [
        &["--players", "200", "--seed", "11"][..],
        &["--with", "arrival.over=4s", "--with", "drop.stock=40", "--with", "drop.no_payment=0"],
    ]
    .concat();
    let (code, text, report) =
        dev.simulate(&folder, &[&args[..], &["--html", html.to_str().unwrap()]].concat()).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("All checks passed."), "{text}");
    assert_eq!(
        (&report["holds"], &report["seed"], &report["players"]),
        (&true.into(), &11.into(), &200.into())
    );
    assert_eq!(report["outcomes"]["bought"], 40, "{text}");
    assert!(report["outcomes"]["tickets matched"].as_u64() > Some(100), "{text}");
    for template in ["drop-admitted", "order-paid", "entitlement-granted", "match-made"] {
        assert!(report["owed_notifications"][template].as_u64() >= Some(40), "{template}: {report}");
    }
    assert_self_contained(&html);
}

/// Fails unless the page loads nothing and has its charts.
fn assert_self_contained(html: &Path) {
    let page = std::fs::read_to_string(html).unwrap();
    for forbidden in ["src=", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("<svg") && page.contains("Players in line") && page.contains("All checks passed."));
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_reported_before_a_player_arrives() {
    let folder = Folder::fresh().unwrap();
    let scenario = folder.path().join("wrong.toml");
    std::fs::write(&scenario, "players = 0\n[drop]\nstok = 3\n").unwrap();
    let (code, text, _) = simulate(&folder, &["--scenario", scenario.to_str().unwrap()]).await;
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("wrong.toml:1:1: players") && text.contains("did you mean `drop.stock`?"),
        "{text}"
    );
    let (code, text, _) = simulate(&folder, &["--scenario", "no-such"]).await;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("launch-day, flash-sale, ladder-evening"), "{text}");
    let (code, text, _) = simulate(&folder, &["--processes", "3"]).await;
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--processes needs --config"), "{text}");
    let (code, text, _) = simulate(&folder, &["--faults"]).await;
    assert_eq!(code, Some(2), "{text}");
    let (code, text, _) = simulate(&folder, &["--admin", "127.0.0.1:1"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("playhouse dev"), "{text}");
}

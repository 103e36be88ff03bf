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
mod signals;
mod silence;
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
        Self::start_at(0, change).await
    }

    /// Starts it with this port of the gateway; 0 is any.
    async fn start_at(gateway: u16, change: impl FnOnce(Program) -> Program) -> Self {
        let ports = [("gateway", gateway), ("service-api", 0), ("admin", 0), ("open-match", 0)]
            .map(|(name, port)| [format!("--{name}-port"), port.to_string()]);
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

    /// Gives the queue of the demo a ready check.
    async fn ask_players(&self, ready_check: &str) {
        let client = reqwest::Client::new();
        let url = |path: &str| format!("http://{}/definitions{path}", self.addresses["admin"]);
        let token = &self.addresses["operator_token"];
        let text = format!("players = 2\nassigner = \"demo\"\nready_check = \"{ready_check}\"\n");
        let body = serde_json::json!({ "text": text });
        let set = client.put(url("/profile/duel")).bearer_auth(token).json(&body).send().await.unwrap();
        assert!(set.status().is_success(), "{}", set.text().await.unwrap());
        testkit::eventually("the profile is active", PATIENCE, async || {
            let listed = client.get(url("")).bearer_auth(token).send().await.unwrap();
            let listed: Value = listed.json().await.unwrap();
            if listed["active_revision"] == 1 { Ok(()) } else { Err(listed) }
        })
        .await;
    }

    /// Returns the arguments that lead the simulator to this process.
    fn own_args(&self) -> [&str; 4] {
        ["--gateway", &self.addresses["gateway"], "--admin", &self.addresses["admin"]]
    }
}

/// Writes the configuration of processes on these stores, with a queue. Returns its path.
fn fleet_config(folder: &Folder, database: &str, redis: &str, nats: &str) -> String {
    let config = folder.path().join("fleet.toml");
    let text = format!(
        "[db]\nurl = \"{database}\"\nmigrate = true\n[redis]\nurl = \"{redis}\"\n[bus]\nurl = \"{nats}\"\n[locks]\nbuckets = 1000\n\
         [gateway.session]\nkeys = [\"0123456789abcdef0123456789abcdef\"]\n\
         [matchmaking.profiles.duel]\nplayers = 2\nassigner = \"any\"\n\
         [matchmaking.assigners.any]\naddresses = [\"{{match_id}}.test:7777\"]\n[matchmaking.queues.duel]\n",
    );
    std::fs::write(&config, text).unwrap();
    config.to_str().unwrap().to_owned()
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
    assert!(self_contained(&html).contains("All checks passed."));
    assert_documented(&report);
}

/// Returns the page. Fails unless it loads nothing and has its charts.
fn self_contained(html: &Path) -> String {
    let page = std::fs::read_to_string(html).unwrap();
    for forbidden in ["src=", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("<svg") && page.contains("Players in line"));
    page
}

/// Fails unless the guide names each field of the report.
fn assert_documented(report: &Value) {
    let guide = include_str!("../../../../docs/guides/simulate.md");
    let (_, section) = guide.split_once("## The report as JSON").unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<String>>();
    let mut names = fields(report);
    names.extend(fields(&report["checks"]));
    names.extend(fields(&report["checks"]["nobody_lost"]));
    names.extend(fields(&report["calls"]["home"]));
    names.extend(fields(&report["each_second"][0]));
    names.extend(fields(&report["marks"][0]));
    for name in names {
        assert!(section.contains(&format!("`{name}`")), "{name} is not documented");
    }
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

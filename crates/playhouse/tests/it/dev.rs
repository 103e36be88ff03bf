use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Instant;

use testkit::{Folder, OutputStream, eventually};

use super::*;

#[tokio::test]
async fn every_listener_answers_within_a_second_and_signals_stop_the_process() {
    let folder = Folder::fresh().unwrap();
    let data = folder.path().join("data");
    for signal in [RunningProgram::sigint, RunningProgram::sigterm] {
        let started = Instant::now();
        let running = dev(&["--data", data.to_str().unwrap()]).start().unwrap();
        let at = addresses(&running).await;
        for listener in ["gateway", "service_api", "open_match", "admin"] {
            let (status, response) = get(format!("http://{}/healthz", at[listener])).await;
            assert_eq!((status, &response["alive"]), (200, &Value::Bool(true)), "{listener}");
        }
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        let (status, report) = get(format!("http://{}/readyz", at["admin"])).await;
        assert_eq!((status, &report["ready"]), (200, &Value::Bool(true)));
        signal(&running);
        assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    }
}

/// Counts anonymous memory only: the pages of an unoptimised program say nothing about its needs.
#[tokio::test]
async fn idle_process_needs_little_memory() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    addresses(&running).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 20_000, "{kib} KiB");
}

/// Returns the deployment id, the first value written to a new database.
async fn deployment(running: &RunningProgram) -> String {
    addresses(running).await;
    let line = running.wait_for_line("database opened", PATIENCE).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    line["deployment"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn data_survives_a_stop_and_a_kill() {
    let folder = Folder::fresh().unwrap();
    let program = dev(&["--data", folder.path().to_str().unwrap(), "--set", "telemetry.log=info"]);
    let running = program.start().unwrap();
    let first = deployment(&running).await;
    running.sigint();
    running.wait(PATIENCE).await;
    let running = program.start().unwrap();
    assert_eq!(deployment(&running).await, first);
    running.kill();
    running.wait(PATIENCE).await;
    let running = program.start().unwrap();
    assert_eq!(deployment(&running).await, first);
}

/// SIGHUP is what a closed terminal sends.
#[tokio::test]
async fn ephemeral_process_leaves_no_files() {
    for signal in ["INT", "TERM"] {
        let folder = Folder::fresh().unwrap();
        let running = dev(&["--ephemeral"]).env("TMPDIR", folder.path()).start().unwrap();
        addresses(&running).await;
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        send_signal(signal, running.pid()).await;
        assert_eq!(running.wait(PATIENCE).await.code(), Some(0), "{signal}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{signal}");
    }
}

/// By convention SIGHUP asks a daemon to reload its configuration.
#[tokio::test]
async fn sighup_does_not_stop_a_process_without_a_terminal() {
    let running = dev(&["--ephemeral", "--set", "telemetry.log=info"]).start().unwrap();
    let at = addresses(&running).await;
    send_signal("HUP", running.pid()).await;
    running.wait_for_line("SIGHUP is ignored", PATIENCE).await;
    assert_eq!(get(format!("http://{}/readyz", at["admin"])).await.0, 200);
    send_signal("TERM", running.pid()).await;
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}

/// `script` provides the terminal, which closes when it is killed.
#[tokio::test]
async fn process_stops_when_its_terminal_closes() {
    let folder = Folder::fresh().unwrap();
    let program = concat!(env!("CARGO_BIN_EXE_playhouse"), " dev --ephemeral");
    let command = format!("exec {program} {}", ANY_PORT.join(" "));
    let terminal = Program::new("/usr/bin/script").args(["-qec", &command, "/dev/null"]);
    let running = terminal.env("TMPDIR", folder.path()).start().unwrap();
    running.wait_for_line("Ctrl-C stops it", PATIENCE).await;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    send_signal("KILL", running.pid()).await;
    eventually("the process stopped and removed its files", PATIENCE, async || {
        std::fs::read_dir(folder.path()).unwrap().count() == 0
    })
    .await;
}

async fn send_signal(signal: &str, pid: u32) {
    let kill = format!("kill -s {signal} {pid}");
    assert_eq!(run(Program::new("/bin/sh").args(["-c", &kill])).await.0, 0, "{kill}");
}

#[tokio::test]
async fn request_is_found_in_the_log_by_its_id() {
    let running = dev(&["--ephemeral", "--set", "telemetry.log=debug"]).start().unwrap();
    let at = addresses(&running).await;
    let client = reqwest::Client::new();
    let request = client.get(format!("http://{}/healthz", at["gateway"])).header("x-request-id", "find-me");
    assert_eq!(request.send().await.unwrap().headers()["x-request-id"], "find-me");
    let line: Value = serde_json::from_str(&running.wait_for_line("find-me", PATIENCE).await).unwrap();
    assert_eq!((&line["message"], &line["status"]), (&Value::from("answered"), &Value::from(200)));
}

/// `script` provides the terminal.
#[tokio::test]
async fn terminal_gets_readable_logs() {
    let program = concat!(env!("CARGO_BIN_EXE_playhouse"), " dev --ephemeral --set telemetry.log=info");
    let command = format!("{program} {}", ANY_PORT.join(" "));
    let running = Program::new("/usr/bin/script").args(["-qec", &command, "/dev/null"]).start().unwrap();
    let line = running.wait_for_line("started", PATIENCE).await;
    assert!(line.contains("INFO") && line.contains("\u{1b}[") && !line.contains("\"level\""), "{line:?}");
}

#[tokio::test]
async fn two_processes_cannot_share_a_data_folder() {
    let folder = Folder::fresh().unwrap();
    let program = dev(&["--data", folder.path().to_str().unwrap()]);
    let first = program.start().unwrap();
    addresses(&first).await;
    let (code, _, errors) = run(program).await;
    assert_eq!(code, 1);
    assert!(errors.contains("in use by another process"), "{errors}");
}

#[tokio::test]
async fn all_taken_ports_are_named() {
    let taken: Vec<TcpListener> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<SocketAddr> = taken.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let program = playhouse(&["dev", "--ephemeral", "--service-api-port", "0", "--open-match-port", "0"])
        .args(["--gateway-port", &ports[0].port().to_string(), "--admin-port", &ports[1].port().to_string()]);
    let (code, _, errors) = run(program).await;
    assert_eq!(code, 1);
    assert!(errors.contains(&format!("listen.gateway = {}", ports[0])), "{errors}");
    assert!(errors.contains(&format!("listen.admin = {}", ports[1])), "{errors}");
}

#[tokio::test]
async fn data_folder_may_have_two_leading_slashes() {
    let folder = Folder::fresh().unwrap();
    let data = format!("/{}", folder.path().join("data").display());
    let running = dev(&["--data", &data]).folder(folder.path()).start().unwrap();
    addresses(&running).await;
    assert!(folder.path().join("data/playhouse.db").exists());
}

#[tokio::test]
async fn settings_chosen_by_dev_cannot_be_set() {
    let (code, _, errors) = run(dev(&["--set", "db.url=mysql://h/d"])).await;
    assert_eq!(code, 2);
    assert!(errors.contains("`playhouse dev` uses embedded stores, so you cannot set db.url"), "{errors}");
}

/// Pastes the command and opens the links, as a newcomer does.
#[tokio::test]
async fn commands_of_the_banner_work_as_pasted() {
    let running = playhouse_without_token(&["dev", "--ephemeral"]).args(ANY_PORT).start().unwrap();
    running.wait_for_line("Ctrl-C stops it", PATIENCE).await;
    let banner = running.text(OutputStream::Stdout);
    assert!(banner.contains("buy in the demo drop"), "{banner}");
    let (links, block) = banner.split_once("Try:\n").unwrap();
    let links: Vec<&str> = links.split_whitespace().filter(|word| word.starts_with("http://")).collect();
    assert_eq!(links.len(), 3, "{banner}");
    for link in links {
        // The console redirects to its sign-in.
        assert_eq!(get(link.to_owned()).await.0, 200, "{link}");
    }
    let (command, _) = block.split_once("\nCtrl-C stops it").unwrap();
    let (code, output, errors) = run(Program::new("/bin/sh").args(["-c", command])).await;
    assert_eq!(code, 0, "{banner}\n{output}\n{errors}");
    assert!(output.contains("every expected role has a process"), "{output}\n{banner}");
}

/// The commands of docs/get-started.md, with the ports of this process and without `jq`.
#[tokio::test]
async fn commands_of_get_started_work_as_pasted() {
    let guide = include_str!("../../../../docs/get-started.md");
    let (_, block) = guide.split_once("<!-- commands -->\n```\n").unwrap();
    let (block, _) = block.split_once("\n```").unwrap();
    let running = dev(&["--ephemeral"]).start().unwrap();
    let at = addresses(&running).await;
    let text = |name: &str| at[name].clone();
    let block = block
        .replace("127.0.0.1:8080", &text("gateway"))
        .replace("127.0.0.1:8081", &text("service_api"))
        .replace("127.0.0.1:8082", &text("admin"))
        .replace("127.0.0.1:50504", &text("open_match"))
        .replace(
            "$(playhouse token --user ada)",
            &format!("$({} token --user ada --admin {})", env!("CARGO_BIN_EXE_playhouse"), text("admin")),
        )
        .replace("ph_...", &text("service_token"));
    // Fails at the first command that fails, or whose response is an error.
    let script = format!("set -e\ncurl() {{ command curl -sS --fail-with-body \"$@\"; echo; }}\n{block}");
    let shell = Program::new("/bin/sh").args(["-c", &script]);
    let (code, output, errors) = run(shell.env("PLAYHOUSE_OPERATOR_TOKEN", shop::OPERATOR_TOKEN)).await;
    assert_eq!(code, 0, "{output}\n{errors}");
    for expected in [
        "\"accounts\":",
        "\"id\":",
        "\"resource\":\"skin:gold\"",
        "\"notification_id\":",
        "\"title\":\"Hello, Ada\"",
        "\"ready\":true",
        "playhouse_ready{",
    ] {
        assert!(output.contains(expected), "{expected} is not in\n{output}");
    }
}

/// Every screen has something to show soon after the start.
#[tokio::test]
async fn demo_fills_in_players_a_drop_and_failures() {
    let running = dev(&["--ephemeral", "--demo"]).start().unwrap();
    let at = addresses(&running).await;
    let client = reqwest::Client::new();
    let services = format!("http://{}/internal/v1", at["service_api"]);
    let read = async |url: String, token: &str| -> Value {
        let response = client.get(url).bearer_auth(&at[token]).send().await.unwrap();
        serde_json::from_str(&response.text().await.unwrap()).unwrap()
    };
    eventually("an open sale, an order and a webhook that is gone", PATIENCE * 3, async || {
        let drops = read(format!("{services}/drops"), "service_token").await;
        let sale = drops["drops"]
            .as_array()
            .unwrap()
            .iter()
            .any(|drop| drop["name"] == "Demo sale" && drop["state"] == "OPEN");
        let status = read(format!("http://{}/status", at["admin"]), "operator_token").await;
        let is_gone = status["findings"].to_string().contains("demo-partner");
        let orders = read(format!("{services}/orders?state=PAID"), "service_token").await;
        sale && is_gone && orders["orders"].as_array().is_some_and(|orders| !orders.is_empty())
    })
    .await;
    let admin = async |path: &str| read(format!("http://{}{path}", at["admin"]), "operator_token").await;
    let has = |found: &Value, list: &str| found[list].as_array().is_some_and(|items| !items.is_empty());
    for (path, list) in [
        ("/broadcasts", "broadcasts"),
        ("/dlq", "letters"),
        ("/outbox?state=failed", "events"),
        ("/outbox/blocked", "keys"),
        ("/jobs", "jobs"),
        ("/tickets", "tickets"),
    ] {
        eventually(&format!("{path} has {list}"), PATIENCE, async || has(&admin(path).await, list)).await;
    }
    let banned = admin("/users?find=mallory").await["users"][0].clone();
    assert_eq!(banned["state"], "BANNED", "{banned}");
    let shown = admin(&format!("/users/{}", banned["user_id"].as_str().unwrap())).await;
    assert!(has(&shown, "notes"), "{shown}");
    let erased = admin("/audit?action=/erase&outcome=done").await;
    assert!(has(&erased, "entries"), "{erased}");
}

#[tokio::test]
async fn every_metric_is_documented() {
    let documented = include_str!("../../../../docs/reference/metrics.md");
    // With an unreachable collector, so that the metrics of the push exist too.
    let running =
        dev(&["--ephemeral", "--set", "telemetry.otlp_endpoint=http://127.0.0.1:1"]).start().unwrap();
    let at = addresses(&running).await;
    let (_, Value::String(text)) = get(format!("http://{}/metrics", at["admin"])).await else {
        panic!("metrics are not text")
    };
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(names.len() > 5, "{text}");
    for name in &names {
        let row = format!("| `{name}` |");
        assert!(documented.contains(&row), "{name} is not in docs/reference/metrics.md");
    }
    // Families without values are not exported, so at least one per crate is expected.
    for (crate_folder, declared) in declared_metrics() {
        let is_registered = |name: &String| names.iter().any(|known| known.contains(name));
        assert!(declared.iter().any(is_registered), "{crate_folder}: none of {declared:?} is registered");
    }
}

/// Returns the metric names in the `metrics.rs` of each service crate.
fn declared_metrics() -> Vec<(String, Vec<String>)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut declared = Vec::new();
    for folder in std::fs::read_dir(crates).unwrap() {
        let folder = folder.unwrap().path();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let Ok(text) = std::fs::read_to_string(folder.join("src/metrics.rs")) else { continue };
        if manifest.contains("\nservice.workspace") {
            let names = text.split(".register").skip(1).filter_map(|rest| rest.split('"').nth(1));
            declared.push((folder.display().to_string(), names.map(ToOwned::to_owned).collect()));
        }
    }
    assert!(declared.len() > 3, "{declared:?}");
    declared
}

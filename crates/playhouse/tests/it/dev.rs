use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Instant;

use testkit::{Folder, Stream};

use super::*;

#[tokio::test]
async fn every_listener_answers_within_a_second_and_a_signal_stops_it_cleanly() {
    let folder = Folder::fresh().unwrap();
    let data = folder.path().join("data");
    for signal in [Running::sigint, Running::sigterm] {
        let started = Instant::now();
        let running = dev(&["--data", data.to_str().unwrap()]).start().unwrap();
        let at = addresses(&running).await;
        for listener in ["gateway", "internal", "open_match", "admin"] {
            let (status, answer) = get(format!("http://{}/healthz", at[listener])).await;
            assert_eq!((status, &answer["alive"]), (200, &Value::Bool(true)), "{listener}");
        }
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        let (status, report) = get(format!("http://{}/readyz", at["admin"])).await;
        assert_eq!((status, &report["ready"]), (200, &Value::Bool(true)));
        signal(&running);
        assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    }
}

/// Of its own: the pages of an unoptimised program are not what it needs.
#[tokio::test]
async fn an_idle_process_needs_little_memory() {
    let running = dev(&["--ephemeral"]).start().unwrap();
    addresses(&running).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 20_000, "{kib} KiB");
}

/// The deployment id is the first thing that is ever written.
async fn deployment(running: &Running) -> String {
    addresses(running).await;
    let line = running.wait_for_line("database opened", PATIENCE).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    line["deployment"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_data_is_kept_over_a_stop_and_over_a_kill() {
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

/// A terminal that is closed hangs up.
#[tokio::test]
async fn an_ephemeral_one_leaves_nothing() {
    for signal in ["INT", "HUP"] {
        let folder = Folder::fresh().unwrap();
        let running = dev(&["--ephemeral"]).env("TMPDIR", folder.path()).start().unwrap();
        addresses(&running).await;
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let kill = format!("kill -s {signal} {}", running.pid());
        assert_eq!(run(Program::new("/bin/sh").args(["-c", &kill])).await.0, 0);
        assert_eq!(running.wait(PATIENCE).await.code(), Some(0), "{signal}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{signal}");
    }
}

#[tokio::test]
async fn a_request_is_found_in_the_log_by_its_id() {
    let running = dev(&["--ephemeral", "--set", "telemetry.log=debug"]).start().unwrap();
    let at = addresses(&running).await;
    let client = reqwest::Client::new();
    let request = client.get(format!("http://{}/healthz", at["gateway"])).header("x-request-id", "find-me");
    assert_eq!(request.send().await.unwrap().headers()["x-request-id"], "find-me");
    let line: Value = serde_json::from_str(&running.wait_for_line("find-me", PATIENCE).await).unwrap();
    assert_eq!((&line["message"], &line["status"]), (&Value::from("answered"), &Value::from(200)));
}

/// On a terminal, which `script` makes.
#[tokio::test]
async fn people_get_logs_for_people() {
    let program = concat!(env!("CARGO_BIN_EXE_playhouse"), " dev --ephemeral --set telemetry.log=info");
    let command = format!("{program} {}", ANY_PORT.join(" "));
    let running = Program::new("/usr/bin/script").args(["-qec", &command, "/dev/null"]).start().unwrap();
    let line = running.wait_for_line("started", PATIENCE).await;
    assert!(line.contains("INFO") && line.contains("\u{1b}[") && !line.contains("\"level\""), "{line:?}");
}

#[tokio::test]
async fn two_processes_cannot_share_the_data() {
    let folder = Folder::fresh().unwrap();
    let program = dev(&["--data", folder.path().to_str().unwrap()]);
    let first = program.start().unwrap();
    addresses(&first).await;
    let (code, _, errors) = run(program).await;
    assert_eq!(code, 1);
    assert!(errors.contains("in use by another process"), "{errors}");
}

#[tokio::test]
async fn ports_that_are_taken_are_all_named() {
    let taken: Vec<TcpListener> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<SocketAddr> = taken.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let program = playhouse(&["dev", "--ephemeral", "--internal-port", "0", "--open-match-port", "0"])
        .args(["--gateway-port", &ports[0].port().to_string(), "--admin-port", &ports[1].port().to_string()]);
    let (code, _, errors) = run(program).await;
    assert_eq!(code, 1);
    assert!(errors.contains(&format!("listen.gateway = {}", ports[0])), "{errors}");
    assert!(errors.contains(&format!("listen.admin = {}", ports[1])), "{errors}");
}

#[tokio::test]
async fn a_folder_with_two_leading_slashes_is_the_folder_that_is_meant() {
    let folder = Folder::fresh().unwrap();
    let data = format!("/{}", folder.path().join("data").display());
    let running = dev(&["--data", &data]).folder(folder.path()).start().unwrap();
    addresses(&running).await;
    assert!(folder.path().join("data/playhouse.db").exists());
}

#[tokio::test]
async fn what_dev_decides_cannot_be_set() {
    let (code, _, errors) = run(dev(&["--set", "db.url=mysql://h/d"])).await;
    assert_eq!(code, 2);
    assert!(errors.contains("`playhouse dev` decides db.url by itself"), "{errors}");
}

#[tokio::test]
async fn the_banner_says_where_to_go() {
    let running = playhouse(&["dev", "--ephemeral"]).args(ANY_PORT).start().unwrap();
    running.wait_for_line("Ctrl-C stops it", PATIENCE).await;
    let banner = running.text(Stream::Stdout);
    let tries = banner.lines().filter_map(|line| line.trim().strip_prefix("curl "));
    let urls: Vec<String> = tries.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(urls.len(), 6, "{banner}");
    assert!(banner.contains("buy in the demo drop"), "{banner}");
    let (_, command) = banner.split_once("Bearer $(").unwrap();
    let (command, _) = command.split_once(')').unwrap();
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some(env!("CARGO_BIN_EXE_playhouse")));
    let (code, token, errors) = run(playhouse(&words.collect::<Vec<_>>())).await;
    assert_eq!(code, 0, "{errors}");
    let home = reqwest::Client::new().get(&urls[0]).bearer_auth(token.trim()).send().await.unwrap();
    assert_eq!(home.status(), 200, "{banner}");
    let ticket = reqwest::Client::new().post(&urls[1]).body(r#"{"ticket":{}}"#).send().await.unwrap();
    assert_eq!(ticket.status(), 200, "{banner}");
    let (_, rest) = banner.split_once("Bearer ph_").unwrap();
    let token = format!("ph_{}", rest.split_once('\'').unwrap().0);
    let (_, body) = banner.split_once("-d '{\"issuer").unwrap();
    let body = format!("{{\"issuer{}", body.split_once('\'').unwrap().0);
    let sign_in = reqwest::Client::new().post(&urls[2]).bearer_auth(&token);
    let sign_in = sign_in.header("content-type", "application/json").body(body).send().await.unwrap();
    assert_eq!(sign_in.status(), 200, "{banner}");
    let (_, body) = banner.split_once("-d '{\"to").unwrap();
    let body = format!("{{\"to{}", body.split_once('\'').unwrap().0);
    let tell = reqwest::Client::new().post(&urls[3]).bearer_auth(&token).header("idempotency-key", "1");
    let told = tell.header("content-type", "application/json").body(body).send().await.unwrap();
    assert_eq!(told.status(), 202, "{banner}");
    for url in &urls[4..] {
        assert_eq!(get(url.clone()).await.0, 200, "{banner}");
    }
}

#[tokio::test]
async fn every_metric_is_documented() {
    let documented = include_str!("../../../../docs/metrics.md");
    // With a collector that is away, so that the metrics of the push are there too.
    let running =
        dev(&["--ephemeral", "--set", "telemetry.otlp_endpoint=http://127.0.0.1:1"]).start().unwrap();
    let at = addresses(&running).await;
    let (_, Value::String(text)) = get(format!("http://{}/metrics", at["admin"])).await else {
        panic!("not a text")
    };
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(names.len() > 5, "{text}");
    for name in &names {
        assert!(documented.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
    }
    // Families without values are not shown, so not all can be expected.
    for (of, declared) in declared_metrics() {
        let is_there = |name: &String| names.iter().any(|known| known.contains(name));
        assert!(declared.iter().any(is_there), "{of}: none of {declared:?} is registered");
    }
}

/// The names of metrics in the `metrics.rs` of each service crate.
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

//! A Director, a match function and an evaluator in Python, with `playhouse dev` and with a fleet.

use std::path::Path;
use std::process::Command;

use testkit::OutputStream;

use super::directors::start;
use super::*;
use crate::open_match::{generate_python, tools};

/// The folder of the example.
fn example() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/open-match-director"))
}

/// Prepares a program of the example.
fn python(stubs: &Folder, script: &str, args: &[&str]) -> Program {
    Program::new("/usr/bin/python3")
        .arg(example().join(script))
        .args(args.iter().copied())
        .env("OPEN_MATCH_STUBS", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Starts a server of the example. Returns its port.
async fn python_server(stubs: &Folder, script: &str, args: &[&str]) -> (RunningProgram, String) {
    let running = python(stubs, script, args).start().unwrap();
    let line = running.wait_for_line("listening on port", PATIENCE).await;
    let port = line.rsplit(' ').next().unwrap().trim().to_owned();
    (running, port)
}

fn stubs() -> Result<Folder, testkit::Error> {
    tools()?;
    let stubs = Folder::fresh().unwrap();
    generate_python(&stubs);
    Ok(stubs)
}

/// Runs the players of the example, who must find each other.
async fn play(stubs: &Folder, address: &str, players: u32) {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(example().join("players.py")).arg(address).arg(players.to_string());
    command.env("OPEN_MATCH_STUBS", stubs.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    let played = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, errors) = (String::from_utf8_lossy(&played.stdout), String::from_utf8_lossy(&played.stderr));
    assert!(played.status.success(), "{out}{errors}");
    assert!(out.contains(&format!("{players} players play on {} servers", players / 2)), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn director_in_python_works_with_dev() {
    let stubs = need!(stubs());
    let (chosen, evaluator) = python_server(&stubs, "evaluator.py", &["127.0.0.1:0"]).await;
    let evaluator = format!("matchmaking.director.evaluator=grpc://127.0.0.1:{evaluator}");
    let window = "matchmaking.director.registration_window=100ms";
    let running = dev(&["--ephemeral", "--set", "matchmaking.demo=false"])
        .args(["--set", window, "--set", &evaluator])
        .start()
        .unwrap();
    let address = addresses(&running).await["open_match"].clone();
    let (_function, port) = python_server(&stubs, "match_function.py", &[&address, "127.0.0.1:0"]).await;
    let function = format!("127.0.0.1:{port}");
    let _director = python(&stubs, "director.py", &[&address, &function]).start().unwrap();
    play(&stubs, &address, 12).await;
    chosen.wait_for_line("chose ", PATIENCE).await;
}

/// As in Open Match, where each program knows another address. Here none of them knows the port of all services.
#[tokio::test(flavor = "multi_thread")]
async fn python_programs_use_separate_ports() {
    let stubs = need!(stubs());
    let ports = ["frontend", "frontend_http", "backend", "backend_http", "query", "query_http"];
    let set = ports.map(|name| format!("listen.open_match_{name}=127.0.0.1:0"));
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
    let running = dev(&["--ephemeral", "--set", "matchmaking.demo=false"]).args(set).start().unwrap();
    let at = addresses(&running).await;
    let at = |name: &str| at[&format!("open_match_{name}")].clone();
    let (_function, port) = python_server(&stubs, "match_function.py", &[&at("query"), "127.0.0.1:0"]).await;
    let function = format!("127.0.0.1:{port}");
    let _director = python(&stubs, "director.py", &[&at("backend"), &function]).start().unwrap();
    play(&stubs, &at("frontend"), 4).await;

    let http2 = Client::builder().http2_prior_knowledge().build().unwrap();
    for (name, served) in [("frontend", "Frontend"), ("backend", "Backend"), ("query", "Query")] {
        for name in [name.to_owned(), format!("{name}_http")] {
            let address = at(&name);
            for (service, path, body) in [
                ("Frontend", "frontendservice/tickets", json!({ "ticket": {} })),
                ("Backend", "backendservice/tickets:release", json!({})),
                ("Query", "queryservice/tickets:query", json!({ "pool": {} })),
            ] {
                let rest = Client::new().post(format!("http://{address}/v1/{path}")).json(&body);
                let status = rest.send().await.unwrap().status();
                assert_eq!(status, if service == served { 200 } else { 404 }, "{name}: {path}");
                let call = http2.post(format!("http://{address}/openmatch.{service}Service/Nothing"));
                let call = call.header("content-type", "application/grpc").header("te", "trailers");
                assert_eq!(call.send().await.unwrap().headers()["grpc-status"], "12", "{name}");
                let health = format!("http://{address}/grpc.health.v1.Health/Check");
                let body = json!({ "service": format!("openmatch.{service}Service") });
                let status = Client::new().post(health).json(&body).send().await.unwrap().status();
                assert_eq!(status, if service == served { 200 } else { 404 }, "{name}: health of {service}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn director_and_evaluator_in_python_work_with_a_fleet() {
    let stubs = need!(stubs());
    let matchmaking = need!(start().await);
    let (_evaluator, evaluator) = python_server(&stubs, "evaluator.py", &["127.0.0.1:0"]).await;
    let file = matchmaking.folder.path().join("playhouse.toml");
    let windows = format!("registration_window = \"100ms\"\nevaluator = \"grpc://127.0.0.1:{evaluator}\"\n");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        config.replacen("[matchmaking.director]\n", &format!("[matchmaking.director]\n{windows}"), 1),
    )
    .unwrap();
    let roles = "matchmaking-frontend,outbox-relay";
    let processes: Vec<RunningProgram> = (0..3).map(|_| matchmaking.serve(roles)).collect();
    let mut places = Vec::new();
    for process in &processes {
        places.push(addresses(process).await["open_match"].clone());
    }
    // Everybody talks to another process.
    let (_function, port) = python_server(&stubs, "match_function.py", &[&places[0], "127.0.0.1:0"]).await;
    let function = format!("127.0.0.1:{port}");
    let directors =
        [1, 2].map(|at| python(&stubs, "director.py", &[&places[at], &function]).start().unwrap());
    // Which Director gets a match is a race, so they play until both have made some.
    let mut made = 0;
    let has_made = |director: &RunningProgram| director.text(OutputStream::Stdout).contains("assigned ");
    while made == 0 || !directors.iter().all(has_made) {
        assert!(made < 240, "only one Director makes matches");
        play(&stubs, &places[0], 24).await;
        made += 12;
    }
    let events = matches_on_the_bus(&matchmaking.fleet.nats.url(), made).await;
    assert!(events.values().all(|tickets| tickets.len() == 2), "{events:?}");
}

//! Ctrl-C and SIGTERM end a run, and what players saw so far is checked.

use testkit::{Nats, Redis, SqlServer, eventually, need};

use super::*;

/// Players arrive for longer than the test takes.
const LONG: [&str; 6] = ["--players", "60", "--with", "arrival.over=10m", "--with", "give_up=20m"];

fn assert_interrupted(code: Option<i32>, text: &str, report: &Value) {
    assert_eq!(code, Some(3), "{text}");
    assert_eq!((&report["interrupted"], &report["holds"]), (&true.into(), &true.into()), "{text}");
    assert_eq!(report["players"], 60, "all players are in the report: {text}");
    assert!(report["outcomes"]["interrupted"].as_u64() > Some(40), "{text}");
    assert!(report["notifications"].as_u64() > Some(0), "what players saw is in the report: {text}");
    assert!(text.contains("The run was stopped") && text.contains("All checks passed."), "{text}");
}

/// Waits until the simulator has reported that players were matched.
async fn players_play(running: &RunningProgram) {
    eventually("players are matched", PATIENCE * 2, async || {
        let progress = running.text(OutputStream::Stderr);
        let last = progress.lines().next_back().unwrap_or_default().to_owned();
        let matched =
            last.split(", ").find_map(|part| part.strip_suffix(" matched")?.trim().parse::<u64>().ok());
        if matched > Some(1) { Ok(()) } else { Err(progress) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupt_ends_the_run_with_a_report() {
    let (dev, folder) = (Dev::start(|program| program).await, Folder::fresh().unwrap());
    let quick = ["--with", "arrival.curve=burst", "--with", "matchmaking.share=1"];
    let args = [&dev.own_args()[..], &LONG, &quick].concat();
    let running = simulator(&folder, &args).start().unwrap();
    players_play(&running).await;
    running.sigint();
    let (code, text, report) = finished(&folder, &running).await;
    assert_interrupted(code, &text, &report);
    assert!(text.contains("SIGINT: the players stop"), "{text}");
}

/// Returns the children of a process that still run.
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse().ok());
    let is_child = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent_line = format!("PPid:\t{parent}\n");
        status.contains(&parent_line)
    };
    processes.filter(is_child).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_run_stops_its_processes_after_the_report() {
    let servers = async { tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private()) };
    let (sql, redis, nats) = need!(servers.await);
    let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
    let config = fleet_config(&folder, database.url(), &redis.url(), &nats.url());
    let quick = ["--with", "arrival.curve=burst", "--with", "matchmaking.share=1"];
    let args = [&["--processes", "2", "--config", &config][..], &LONG, &quick].concat();
    let running = simulator(&folder, &args).start().unwrap();
    players_play(&running).await;
    let started = children(running.pid());
    assert_eq!(started.len(), 2, "{started:?}");
    running.sigterm();
    let (code, text, report) = finished(&folder, &running).await;
    assert_interrupted(code, &text, &report);
    eventually("its processes have ended", PATIENCE, async || {
        let left: Vec<&u32> =
            started.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_stops_at_once_and_leaves_no_process() {
    let servers = async { tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private()) };
    let (sql, redis, nats) = need!(servers.await);
    let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
    let config = fleet_config(&folder, database.url(), &redis.url(), &nats.url());
    let args = [&["--processes", "1", "--config", &config][..], &LONG].concat();
    let running = simulator(&folder, &args).start().unwrap();
    eventually("its process runs", PATIENCE, async || {
        let started = children(running.pid());
        if started.is_empty() { Err("none") } else { Ok(()) }
    })
    .await;
    let started = children(running.pid());
    running.sigint();
    running.sigterm();
    let (code, text, report) = finished(&folder, &running).await;
    assert_eq!((code, report), (Some(1), Value::Null), "{text}");
    eventually("its process has ended", PATIENCE, async || {
        let left: Vec<&u32> =
            started.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

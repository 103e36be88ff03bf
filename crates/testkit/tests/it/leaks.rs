//! No server, program or folder outlives a test process, however it ends.

use std::fs;
use std::path::Path;
use std::time::Duration;

use testkit::{
    Browser, Flavour, Folder, Nats, OidcClients, OidcProvider, Program, Redis, RunningProgram, SqlServer,
    TlsProxy, eventually, need,
};

use crate::DEADLINE;
use crate::roles::{again, role};

/// Starts a server of each kind, prints their processes and folders, and waits to be killed.
async fn victim() {
    let folder = Folder::fresh().unwrap();
    let mysql = SqlServer::builder(Flavour::Mysql).start().await;
    let sql = SqlServer::shared().await.unwrap();
    let durable = SqlServer::builder(Flavour::Mariadb).durable().start().await.unwrap();
    let redis = Redis::shared().await.unwrap();
    let mut paused = Redis::private().await.unwrap();
    paused.pause().await.unwrap();
    let nats = Nats::shared().await.unwrap();
    let program = Program::new("/bin/sh").args(["-c", "sleep 1000 & wait"]).start().unwrap();

    let servers = [sql.pid(), durable.pid(), redis.pid(), paused.pid(), nats.pid(), Some(program.pid())];
    let mysql_pid = mysql.as_ref().ok().and_then(|server| server.pid());
    for pid in servers.into_iter().chain([mysql_pid, Some(testkit::guard_pid())]).flatten() {
        println!("pid {pid}");
    }
    let folders = [sql.folders(), durable.folders(), redis.folders(), nats.folders(), vec![folder.path()]];
    for folder in folders.concat() {
        println!("folder {}", folder.display());
    }
    println!("everything runs");
    std::future::pending().await
}

/// Finds folders and processes that belong to the test process `pid`.
///
/// The names of its folders contain its process id. Everything that it starts has such a folder in its command line or as its
/// current folder.
fn left_by(pid: u32) -> Vec<String> {
    let mark = format!("testkit_{pid}_");
    let mut left = Vec::new();
    let disk = testkit::target_dir().join("testkit");
    for place in [Path::new("/dev/shm"), &std::env::temp_dir(), &disk.join("run"), &disk] {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        left.extend(
            entries.map(|entry| entry.path().display().to_string()).filter(|path| path.contains(&mark)),
        );
    }
    for process in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let folder = fs::read_link(process.join("cwd")).unwrap_or_default();
        if command.contains(&mark) || folder.to_string_lossy().contains(&mark) {
            left.push(format!("{} {command}", process.display()));
        }
    }
    left
}

/// Returns whether the process runs. A zombie does not.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn values_after<'a>(lines: &'a [String], what: &str) -> Vec<&'a str> {
    // The first line begins with output of the test runner.
    lines.iter().filter_map(|line| line.split_once(what).map(|(_, rest)| rest)).collect()
}

async fn assert_nothing_left(victim: &RunningProgram) {
    let pid = victim.pid();
    eventually("nothing left of the test process", DEADLINE, || async move {
        let left = left_by(pid);
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    })
    .await;
}

#[tokio::test]
async fn killed_test_process_leaves_nothing_behind() {
    if role().is_some() {
        return victim().await;
    }
    need!(SqlServer::mariadb().await);
    need!(Redis::shared().await);
    need!(Nats::shared().await);

    let victim = again!("victim").start().unwrap();
    victim.wait_for_line("everything runs", DEADLINE).await;
    let lines: Vec<String> = victim.lines().into_iter().map(|line| line.text).collect();
    let (pids, folders) = (values_after(&lines, "pid "), values_after(&lines, "folder "));
    assert!(pids.len() >= 7 && folders.len() >= 6, "{lines:?}");
    assert!(pids.iter().all(|pid| is_running(pid)), "{lines:?}");
    assert!(folders.iter().all(|folder| Path::new(folder).is_dir()), "{lines:?}");
    assert!(left_by(victim.pid()).len() >= pids.len(), "{:?}", left_by(victim.pid()));

    victim.kill();
    victim.wait(DEADLINE).await;
    eventually("the end of every process", DEADLINE, || async {
        let left: Vec<_> = pids.iter().filter(|pid| is_running(pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} of {lines:?}")) }
    })
    .await;
    eventually("the end of every folder", DEADLINE, || async {
        let left: Vec<_> = folders.iter().filter(|folder| Path::new(folder).exists()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert_nothing_left(&victim).await;
}

/// Kills test processes at all stages of their start.
#[tokio::test]
async fn kill_at_any_moment_leaks_nothing() {
    if role().is_some() {
        return victim().await;
    }
    need!(SqlServer::mariadb().await);
    need!(Redis::shared().await);
    need!(Nats::shared().await);
    for step in 0..16 {
        let victim = again!("victim").start().unwrap();
        // The moments are spread over the duration of a start on a fast machine.
        let moment = Duration::from_millis(60 * step + fastrand::u64(0..60));
        tokio::time::sleep(moment).await;
        victim.kill();
        victim.wait(DEADLINE).await;
        assert_nothing_left(&victim).await;
    }
}

/// The same with an identity provider and a browser, which starts a dozen processes.
#[tokio::test]
async fn killed_test_process_leaves_no_browser_behind() {
    if role().is_some() {
        let provider = OidcProvider::start(OidcClients::default()).await.unwrap();
        let tls = TlsProxy::to(provider.addr()).await.unwrap();
        let browser = Browser::builder().accept_any_certificate().start().await.unwrap();
        browser.goto(format!("{}/.well-known/openid-configuration", tls.url())).await;
        println!("everything runs");
        return std::future::pending().await;
    }
    need!(Browser::start().await);
    need!(OidcProvider::start(OidcClients::default()).await);

    let victim = again!("victim").start().unwrap();
    victim.wait_for_line("everything runs", DEADLINE).await;
    assert!(left_by(victim.pid()).len() > 6, "{:?}", left_by(victim.pid()));
    victim.kill();
    victim.wait(DEADLINE).await;
    assert_nothing_left(&victim).await;

    for step in 0..8 {
        let victim = again!("victim").start().unwrap();
        let moment = Duration::from_millis(250 * step + fastrand::u64(0..250));
        tokio::time::sleep(moment).await;
        victim.kill();
        victim.wait(DEADLINE).await;
        assert_nothing_left(&victim).await;
    }
}

/// A test process that exits does not drop the shared servers.
#[tokio::test]
async fn test_process_that_exits_leaves_nothing_behind() {
    if role().is_some() {
        let redis = Redis::shared().await.unwrap();
        println!("pid {}", redis.pid().unwrap());
        return;
    }
    need!(Redis::shared().await);
    let process = again!("well-behaved").start().unwrap();
    assert!(process.wait(DEADLINE).await.success());
    let lines: Vec<String> = process.lines().into_iter().map(|line| line.text).collect();
    let pids = values_after(&lines, "pid ");
    assert_eq!(pids.len(), 1, "{lines:?}");
    eventually("the end of the server", DEADLINE, || async { !is_running(pids[0]) }).await;
    assert_nothing_left(&process).await;
}

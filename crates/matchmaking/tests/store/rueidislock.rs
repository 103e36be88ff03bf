//! Beside the lock library of minimatch: a program in Go that fetches tickets in several commands, under that library's lock.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::{OutputStream, Program, Redis, need};

use crate::setup::{PATIENCE, Setup, id};

/// How often the other program takes the lock.
const ROUNDS: usize = 60;

/// Builds the program. Go downloads the library, and checks it against its checksum database.
async fn library() -> Result<PathBuf, testkit::Error> {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rueidislock"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rueidislock");
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["main.go", "go.mod"] {
        std::fs::copy(source.join(file), folder.join(file)).unwrap();
    }
    let mut build = Command::new("go");
    build.args(["build", "-mod=mod", "-o", "rueidislock", "."]).current_dir(&folder);
    let built = tokio::task::spawn_blocking(move || build.output()).await.unwrap();
    match built {
        Err(_) => Err(testkit::Error::Missing { program: "go", remedy: "`cargo xtask test` installs it" }),
        Ok(built) if built.status.success() => Ok(folder.join("rueidislock")),
        Ok(built) => Err(testkit::Error::Failed(String::from_utf8_lossy(&built.stderr).into_owned())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_ticket_is_fetched_twice_beside_the_real_lock_library() {
    let library = need!(library().await);
    let redis = need!(Redis::shared().await);
    for setup in [Setup::lock(redis), Setup::script(redis)] {
        let tickets = setup.open().await;
        tickets.create_all(0..1000).await;
        let (address, prefix) = (redis.addr().to_string(), tickets.key(""));
        let other = Program::new(&library).args([&address, &prefix, &ROUNDS.to_string()]).start().unwrap();
        let (mut fetched, mut fetches, mut deletions) = (Vec::new(), Vec::new(), Vec::new());
        for number in (500..1000).rev() {
            if other.exit_status().is_some() {
                break;
            }
            let started = Instant::now();
            fetched.extend(tickets.take(3).await.into_iter().map(|id| id.to_string()));
            fetches.push(started.elapsed());
            let started = Instant::now();
            tickets.delete(&id(number)).await.unwrap();
            deletions.push(started.elapsed());
            // As a player or an engine that does something else now and then.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(other.wait(PATIENCE).await.success(), "{}", other.text(OutputStream::Stderr));
        let theirs: Vec<String> =
            other.text(OutputStream::Stdout).split_whitespace().map(ToOwned::to_owned).collect();
        assert!(!theirs.is_empty() && !fetched.is_empty(), "{} and {}", theirs.len(), fetched.len());
        let count = theirs.len() + fetched.len();
        fetched.extend(theirs);
        fetched.sort();
        fetched.dedup();
        assert_eq!(fetched.len(), count, "a ticket was fetched by both");
        for (what, mut times) in [("fetch", fetches), ("DeleteTicket", deletions)] {
            times.sort();
            let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
            eprintln!(
                "{:?}: {what}: {} calls, p50 {p50:?}, p99 {p99:?}",
                setup.rules.coordination,
                times.len()
            );
            assert!(p99 < Duration::from_secs(5), "{what} stalls: {p99:?}");
        }
    }
}

//! Holders that die or lose their connection.

use std::path::PathBuf;

use hierlock::Error;
use sqlx::Executor;
use testkit::{Program, need};

use super::*;

/// Returns the program `examples/hold.rs`, which cargo builds with the tests.
fn hold(database: &str, target: &str) -> Program {
    let tests = std::env::current_exe().unwrap();
    let build: PathBuf = tests.ancestors().nth(2).unwrap().into();
    Program::new(build.join("examples/hold")).args([database, &BUCKETS.to_string(), target])
}

#[tokio::test]
async fn killed_holder_loses_its_lock_at_once() {
    for store in need!(servers().await) {
        let TestStore::MySql(database) = &store else { panic!("a server") };
        let locks = store.locks().await;
        let holder = hold(database.url(), "u/a").start().unwrap();
        holder.wait_for_line("holding", TIMEOUT).await;
        assert!(!is_free(&locks, resource("u", "a", "r")).await);
        let began = std::time::Instant::now();
        holder.kill();
        let lock = locks.acquire(resource("u", "a", "r")).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        lock.release().await.unwrap();
    }
}

/// A holder that is paused for longer than the server's idle timeout loses the lock, and detects it when it resumes.
#[tokio::test]
async fn paused_holder_detects_the_loss() {
    let server = need!(SqlServer::shared().await);
    let store = TestStore::on(server).await;
    let TestStore::MySql(database) = &store else { panic!("a server") };
    let locks = store.locks().await;
    let holder = hold(database.url(), "u/a").start().unwrap();
    holder.wait_for_line("holding", TIMEOUT).await;
    holder.pause().await;
    // The heartbeat is one second, so the server waits for three.
    let next = locks.acquire(account("u", "a")).await.unwrap();
    holder.resume();
    holder.wait_for_line("lost", TIMEOUT).await;
    next.release().await.unwrap();
}

/// The elapsed time alone makes the lock invalid, before any round trip.
#[tokio::test]
async fn lock_is_invalid_immediately_after_a_long_pause() {
    for store in need!(servers().await) {
        let locks = store.locks_with(Options { heartbeat: Duration::from_millis(333), ..options() }).await;
        let lock = locks.acquire(user("u")).await.unwrap();
        // Blocks the whole runtime. The server waits for one second.
        std::thread::sleep(Duration::from_millis(1_100));
        assert!(!lock.is_valid());
        drop(lock);
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn holder_with_an_ended_session_detects_the_loss() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut connection = store.connect().await;
        let mut kill = async |session: u64| {
            connection.execute(sqlx::AssertSqlSafe(format!("KILL {session}"))).await.unwrap();
        };
        // By `check`.
        let lock = locks.acquire(user("u")).await.unwrap();
        lock.check().await.unwrap();
        kill(lock.session_id().unwrap()).await;
        assert!(matches!(lock.check().await, Err(Error::Lost)));
        assert!(!lock.is_valid());
        assert!(matches!(lock.release().await, Err(Error::Lost)), "the release reports the loss too");
        // By `lost`, within a heartbeat.
        let lock = locks.acquire(user("u")).await.unwrap();
        kill(lock.session_id().unwrap()).await;
        tokio::time::timeout(Duration::from_secs(10), lock.lost()).await.unwrap();
        assert!(!lock.is_valid());
        drop(lock);
        // By `release`.
        let lock = locks.acquire(user("u")).await.unwrap();
        kill(lock.session_id().unwrap()).await;
        assert!(matches!(lock.release().await, Err(Error::Lost)));
        locks.acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_idle(&locks).await;
    }
}

/// The server ends idle sessions; the heartbeat keeps the holder's session alive.
#[tokio::test]
async fn lock_is_held_for_longer_than_the_idle_timeout() {
    for store in need!(all_stores().await) {
        let locks = store.locks_with(Options { heartbeat: Duration::from_millis(500), ..options() }).await;
        let lock = locks.acquire(user("u")).await.unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(2_500) {
            assert!(lock.is_valid(), "after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!is_free(&store.locks().await, user("u")).await);
        lock.release().await.unwrap();
    }
}

/// Idle sessions that the server has ended cause no error.
#[tokio::test]
async fn ended_sessions_are_replaced_transparently() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let held = [locks.acquire(user("1")).await.unwrap(), locks.acquire(user("2")).await.unwrap()];
        let sessions = held.each_ref().map(|lock| lock.session_id().unwrap());
        for lock in held {
            lock.release().await.unwrap();
        }
        let mut connection = store.connect().await;
        for session in sessions {
            connection.execute(sqlx::AssertSqlSafe(format!("KILL {session}"))).await.unwrap();
        }
        let lock = locks.acquire(user("1")).await.unwrap();
        assert!(!sessions.contains(&lock.session_id().unwrap()));
        lock.release().await.unwrap();
    }
}

/// The server's idle timeout does not run during a lock wait.
#[tokio::test]
async fn wait_can_last_longer_than_the_idle_timeout() {
    for store in need!(servers().await) {
        let (ours, theirs) = (
            store.locks().await,
            store.locks_with(Options { heartbeat: Duration::from_millis(300), ..options() }).await,
        );
        let held = ours.acquire(user("u")).await.unwrap();
        let release = async {
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            held.release().await.unwrap();
        };
        let (acquired, ()) = tokio::join!(theirs.acquire(user("u")), release);
        let lock = acquired.unwrap();
        assert!(lock.is_valid());
        lock.check().await.unwrap();
        assert!(!is_free(&ours, user("u")).await);
        lock.release().await.unwrap();
        assert_idle(&theirs).await;
    }
}

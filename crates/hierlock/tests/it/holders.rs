//! Holders that die, and holders whose connection does.

use std::path::PathBuf;

use hierlock::Error;
use sqlx::Executor;
use testkit::{Program, need};

use super::*;

/// `examples/hold.rs`, which cargo builds beside the tests.
fn hold(database: &str, target: &str) -> Program {
    let tests = std::env::current_exe().unwrap();
    let build: PathBuf = tests.ancestors().nth(2).unwrap().into();
    Program::new(build.join("examples/hold")).args([database, &BUCKETS.to_string(), target])
}

#[tokio::test]
async fn a_holder_that_is_killed_lets_go_as_soon_as_the_server_notices() {
    for place in need!(servers().await) {
        let Place::MySql(database) = &place else { panic!("a server") };
        let locks = place.locks().await;
        let holder = hold(database.url(), "u/a").start().unwrap();
        holder.wait_for_line("holding", PATIENCE).await;
        assert!(!is_free(&locks, resource("u", "a", "r")).await);
        let began = std::time::Instant::now();
        holder.kill();
        let lock = locks.acquire(resource("u", "a", "r")).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        lock.release().await.unwrap();
    }
}

/// One that stands still for longer than the server waits has lost the lock, and finds out before it writes.
#[tokio::test]
async fn a_holder_that_stood_still_for_too_long_knows_that_it_has_lost() {
    let server = need!(SqlServer::shared().await);
    let place = Place::on(server).await;
    let Place::MySql(database) = &place else { panic!("a server") };
    let locks = place.locks().await;
    let holder = hold(database.url(), "u/a").start().unwrap();
    holder.wait_for_line("holding", PATIENCE).await;
    holder.pause().await;
    // It beats once a second, so the server waits for three.
    let next = locks.acquire(account("u", "a")).await.unwrap();
    holder.resume();
    holder.wait_for_line("lost", PATIENCE).await;
    next.release().await.unwrap();
}

/// Before anybody could ask or tell: the time alone says it.
#[tokio::test]
async fn a_holder_that_stood_still_for_too_long_is_not_valid_from_the_first_moment() {
    for place in need!(servers().await) {
        let locks = place.locks_with(Options { heartbeat: Duration::from_millis(333), ..options() }).await;
        let lock = locks.acquire(user("u")).await.unwrap();
        // The whole runtime stands still. The server waits for a second.
        std::thread::sleep(Duration::from_millis(1_100));
        assert!(!lock.is_valid());
        drop(lock);
        assert_nothing_is_left(&locks).await;
    }
}

#[tokio::test]
async fn a_holder_whose_session_was_ended_learns_it_before_its_next_write() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let mut connection = place.connect().await;
        let mut kill = async |session: u64| {
            connection.execute(sqlx::AssertSqlSafe(format!("KILL {session}"))).await.unwrap();
        };
        // By asking.
        let lock = locks.acquire(user("u")).await.unwrap();
        lock.check().await.unwrap();
        kill(lock.session_id().unwrap()).await;
        assert!(matches!(lock.check().await, Err(Error::Lost)));
        assert!(!lock.is_valid());
        assert!(matches!(lock.release().await, Err(Error::Lost)), "whoever releases is told, too");
        // By being told, within a heartbeat.
        let lock = locks.acquire(user("u")).await.unwrap();
        kill(lock.session_id().unwrap()).await;
        tokio::time::timeout(Duration::from_secs(10), lock.lost()).await.unwrap();
        assert!(!lock.is_valid());
        drop(lock);
        // By releasing.
        let lock = locks.acquire(user("u")).await.unwrap();
        kill(lock.session_id().unwrap()).await;
        assert!(matches!(lock.release().await, Err(Error::Lost)));
        locks.acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_nothing_is_left(&locks).await;
    }
}

/// The server ends sessions that say nothing; a holder that lives says something.
#[tokio::test]
async fn a_lock_is_held_for_longer_than_the_server_waits_for_a_word() {
    for place in need!(places().await) {
        let locks = place.locks_with(Options { heartbeat: Duration::from_millis(500), ..options() }).await;
        let lock = locks.acquire(user("u")).await.unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(2_500) {
            assert!(lock.is_valid(), "after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!is_free(&place.locks().await, user("u")).await);
        lock.release().await.unwrap();
    }
}

/// Sessions that rested and were ended meanwhile are not a caller's business.
#[tokio::test]
async fn sessions_that_are_gone_are_replaced_without_a_word() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let held = [locks.acquire(user("1")).await.unwrap(), locks.acquire(user("2")).await.unwrap()];
        let sessions = held.each_ref().map(|lock| lock.session_id().unwrap());
        for lock in held {
            lock.release().await.unwrap();
        }
        let mut connection = place.connect().await;
        for session in sessions {
            connection.execute(sqlx::AssertSqlSafe(format!("KILL {session}"))).await.unwrap();
        }
        let lock = locks.acquire(user("1")).await.unwrap();
        assert!(!sessions.contains(&lock.session_id().unwrap()));
        lock.release().await.unwrap();
    }
}

/// The server loses patience with those who say nothing, not with those who wait.
#[tokio::test]
async fn a_wait_may_last_longer_than_the_server_waits_for_a_word() {
    for place in need!(servers().await) {
        let (ours, theirs) = (
            place.locks().await,
            place.locks_with(Options { heartbeat: Duration::from_millis(300), ..options() }).await,
        );
        let held = ours.acquire(user("u")).await.unwrap();
        let release = async {
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            held.release().await.unwrap();
        };
        let (asked, ()) = tokio::join!(theirs.acquire(user("u")), release);
        let lock = asked.unwrap();
        assert!(lock.is_valid());
        lock.check().await.unwrap();
        assert!(!is_free(&ours, user("u")).await);
        lock.release().await.unwrap();
        assert_nothing_is_left(&theirs).await;
    }
}

use hierlock::Level;
use prometheus_client::registry::Registry;
use testkit::{eventually, need};

use super::*;

/// Returns all metrics as text.
fn metrics(locks: &LockManager) -> String {
    let mut registry = Registry::default();
    locks.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

pub(crate) fn gauge(locks: &LockManager, name: &str) -> i64 {
    let text = metrics(locks);
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn count(locks: &LockManager, level: Level, outcome: &str) -> u64 {
    let start = format!("hierlock_acquire_duration_seconds_count{{level=\"{level}\",outcome=\"{outcome}\"}}");
    let text = metrics(locks);
    let line =
        text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{start}:\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn acquisitions_are_counted_by_level_and_outcome() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await.with_timeout(Duration::from_millis(60));
        let before = |level, outcome| count(&locks, level, outcome);
        assert_eq!(before(Level::User, "granted"), 0, "counters start at zero");
        let held = locks.acquire(account("u", "a")).await.unwrap();
        assert_eq!((gauge(&locks, "hierlock_holds"), gauge(&locks, "hierlock_waiters")), (1, 0));
        assert!(locks.acquire(resource("u", "a", "r")).await.is_err());
        let left = tokio::time::timeout(Duration::from_millis(10), locks.acquire(user("u"))).await;
        assert!(left.is_err());
        assert_eq!(count(&locks, Level::Account, "granted"), 1);
        assert_eq!(count(&locks, Level::Resource, "timeout"), 1);
        assert_eq!(count(&locks, Level::User, "abandoned"), 1);
        held.release().await.unwrap();
        drop(locks.acquire(user("u")).await.unwrap());
        assert_eq!((gauge(&locks, "hierlock_holds"), gauge(&locks, "hierlock_waiters")), (0, 0));
        assert!(metrics(&locks).contains("hierlock_hold_duration_seconds_count 2\n"));
        eventually("all is released", TIMEOUT, || async { locks.is_idle() }).await;
    }
}

#[tokio::test]
async fn contended_row_is_the_hottest() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        for number in 0..6 {
            let id = number.to_string();
            let held = locks.acquire(user("celebrity")).await.unwrap();
            let acquiring = locks.acquire(account("celebrity", &id));
            let release = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                held.release().await.unwrap();
            };
            let (acquired, ()) = tokio::join!(acquiring, release);
            acquired.unwrap().release().await.unwrap();
        }
        let hot = locks.hot_rows(3);
        let buckets = if locks.is_in_process() { 0 } else { BUCKETS };
        assert_eq!(hot[0].row.level, Level::User);
        assert_eq!(hot[0].row.bucket, user("celebrity").bucket(buckets));
        assert!(
            hot[0].waits >= 6 && hot[0].total >= hot[0].longest && hot[0].longest >= Duration::from_millis(5)
        );
        assert!(hot[1].total < hot[0].total);
    }
}

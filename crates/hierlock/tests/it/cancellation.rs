use futures::future::join_all;
use testkit::{Seed, eventually, need};

use super::*;

/// A cancelled wait releases the locks it already had and leaves the queue, on the server too.
#[tokio::test]
async fn cancelled_wait_leaves_nothing_behind() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let held = locks.acquire(account("u", "a")).await.unwrap();
        {
            let mut waiting = std::pin::pin!(locks.acquire_all([user("early"), resource("u", "a", "r")]));
            let too_soon = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
            assert!(too_soon.is_err(), "it must wait");
            // It holds the rows before the one it waits for. The bucket order decides whether "early" is one of them.
        }
        let elsewhere = store.locks().await.with_timeout(Duration::from_secs(3));
        elsewhere.acquire(user("early")).await.unwrap().release().await.unwrap();
        assert_eq!(elsewhere.lock_waits().await.unwrap().unwrap_or_default(), [], "no waiter is left behind");
        held.release().await.unwrap();
        elsewhere.acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_idle(&locks).await;
    }
}

/// Cancels hundreds of acquisitions at random moments.
#[tokio::test(flavor = "multi_thread")]
async fn cancellation_at_any_moment_leaks_no_locks_or_connections() {
    let seed = Seed::new();
    for store in need!(all_stores().await) {
        let locks = store.locks_with(Options { max_connections: 8, ..options() }).await;
        let visit = |locks: LockManager, number: u64| async move {
            let mut choices = seed.choices(number);
            let micros = choices.u64(0..4_000);
            let visiting = async {
                let lock = locks.acquire(resource("u", "a", &(number % 3).to_string())).await.unwrap();
                tokio::time::sleep(Duration::from_micros(choices.u64(0..500))).await;
                if number.is_multiple_of(2) { lock.release().await.unwrap() } else { drop(lock) }
            };
            let _ = tokio::time::timeout(Duration::from_micros(micros), visiting).await;
        };
        let visits = (0..400).map(|number| tokio::spawn(visit(locks.clone(), number)));
        join_all(visits).await.into_iter().for_each(Result::unwrap);
        assert_idle(&locks).await;
        let lock = locks.with_timeout(Duration::from_secs(3)).acquire(user("u")).await.unwrap();
        lock.release().await.unwrap();
        if !locks.is_in_process() {
            eventually("there are no more sessions than permits", TIMEOUT, || async {
                let sessions = store.sessions().await;
                // Two more: one kills sessions, the other reads lock waits.
                if sessions.len() <= 8 + 2 { Ok(()) } else { Err(format!("{sessions:?}")) }
            })
            .await;
        }
    }
}

/// A lock that is dropped outside a runtime is released too.
#[tokio::test(flavor = "multi_thread")]
async fn lock_can_be_dropped_outside_a_runtime() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let lock = locks.acquire(user("u")).await.unwrap();
        std::thread::spawn(move || drop(lock)).join().unwrap();
        locks.with_timeout(Duration::from_secs(3)).acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn cancellation_during_the_grant_releases_the_lock() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let held = locks.acquire(user("u")).await.unwrap();
        let mut waiting = Box::pin(locks.acquire(user("u")));
        assert!(futures::poll!(&mut waiting).is_pending());
        held.release().await.unwrap();
        // In process the lock is granted now, but the waiter has not been polled.
        drop(waiting);
        locks.with_timeout(Duration::from_secs(3)).acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_idle(&locks).await;
    }
}

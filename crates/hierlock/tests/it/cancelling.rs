use futures::future::join_all;
use testkit::{Seed, eventually, need};

use super::*;

/// Whoever leaves while waiting takes along what they had, and their place in the queue, also on the server.
#[tokio::test]
async fn a_wait_that_is_given_up_is_given_up_everywhere() {
    let _alone = LOOKING.lock().await;
    for place in need!(places().await) {
        let locks = place.locks().await;
        let held = locks.acquire(account("u", "a")).await.unwrap();
        {
            let mut waiting = std::pin::pin!(locks.acquire_all([user("early"), resource("u", "a", "r")]));
            let too_soon = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
            assert!(too_soon.is_err(), "it waits");
            // What it took on its way is held while it waits. Depending on the buckets, "early" was before or behind.
        }
        let elsewhere = place.locks().await.within(Duration::from_secs(3));
        elsewhere.acquire(user("early")).await.unwrap().release().await.unwrap();
        assert_eq!(elsewhere.waits().await.unwrap().unwrap_or_default(), [], "no waiter is left behind");
        held.release().await.unwrap();
        elsewhere.acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_nothing_is_left(&locks).await;
    }
}

/// Left at any moment, hundreds of times: no lock and no connection is lost.
#[tokio::test(flavor = "multi_thread")]
async fn leaving_at_any_moment_leaks_neither_locks_nor_connections() {
    let seed = Seed::new();
    for place in need!(places().await) {
        let locks = place.locks_with(Options { max_connections: 8, ..options() }).await;
        let visit = |locks: Locks, number: u64| async move {
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
        assert_nothing_is_left(&locks).await;
        let lock = locks.within(Duration::from_secs(3)).acquire(user("u")).await.unwrap();
        lock.release().await.unwrap();
        if !locks.is_in_process() {
            eventually("there are no more sessions than places", PATIENCE, || async {
                let sessions = place.sessions().await;
                // Two more: for killing and for looking.
                if sessions.len() <= 8 + 2 { Ok(()) } else { Err(format!("{sessions:?}")) }
            })
            .await;
        }
    }
}

/// A lock that is dropped where there is no runtime is released all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_may_be_dropped_anywhere() {
    for place in need!(places().await) {
        let locks = place.locks().await;
        let lock = locks.acquire(user("u")).await.unwrap();
        std::thread::spawn(move || drop(lock)).join().unwrap();
        locks.within(Duration::from_secs(3)).acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_nothing_is_left(&locks).await;
    }
}

#[tokio::test]
async fn whoever_leaves_while_being_served_takes_nothing_along() {
    for place in need!(places().await) {
        let locks = place.locks().await;
        let held = locks.acquire(user("u")).await.unwrap();
        let mut waiting = Box::pin(locks.acquire(user("u")));
        assert!(futures::poll!(&mut waiting).is_pending());
        held.release().await.unwrap();
        // In process it has the lock now, and does not know it yet.
        drop(waiting);
        locks.within(Duration::from_secs(3)).acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_nothing_is_left(&locks).await;
    }
}

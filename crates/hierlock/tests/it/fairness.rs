use std::sync::{Arc, Mutex};

use testkit::{eventually, need};

use super::*;

/// A stream of shared holders does not starve an exclusive waiter: later requests queue behind it.
#[tokio::test]
async fn exclusive_waiter_is_not_starved_by_shared_holders() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let first = locks.acquire(resource("u", "a", "1")).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let acquire = |target: Target<'static>, name: &'static str| {
            let (locks, order) = (locks.clone(), order.clone());
            tokio::spawn(async move {
                let lock = locks.acquire(target).await.unwrap();
                order.lock().unwrap().push(name);
                lock.release().await.unwrap();
            })
        };
        let whole = acquire(account("u", "a"), "whole");
        waiting(&locks, 1).await;
        let part = acquire(resource("u", "a", "2"), "part");
        waiting(&locks, 2).await;
        assert!(order.lock().unwrap().is_empty(), "the shared request waits behind the exclusive one");
        first.release().await.unwrap();
        whole.await.unwrap();
        part.await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["whole", "part"]);
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn cancelled_waiter_does_not_block_others() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let first = locks.acquire(resource("u", "a", "1")).await.unwrap();
        let acquire = |target: Target<'static>| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.acquire(target).await.unwrap() })
        };
        let whole = acquire(account("u", "a"));
        waiting(&locks, 1).await;
        let part = acquire(resource("u", "a", "2"));
        waiting(&locks, 2).await;
        whole.abort();
        let part = tokio::time::timeout(Duration::from_secs(5), part).await.unwrap().unwrap();
        part.release().await.unwrap();
        first.release().await.unwrap();
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn in_process_locks_are_first_in_first_out() {
    let _alone = WAIT_TABLES.lock().await;
    let locks = in_process();
    let first = locks.acquire(user("u")).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..50 {
        let (ours, order) = (locks.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let id = number.to_string();
            // A mix of shared and exclusive requests.
            let target = if number % 3 == 0 { user("u") } else { account("u", &id) };
            let lock = ours.acquire(target).await.unwrap();
            order.lock().unwrap().push(number);
            drop(lock);
        }));
        waiting(&locks, number + 1).await;
    }
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
    assert!(locks.is_idle());
}

/// Waits until `count` acquisitions wait. If there is a server, its tables must show them.
async fn waiting(locks: &LockManager, count: usize) {
    eventually("all requests are queued", TIMEOUT, async || match locks.lock_waits().await.unwrap() {
        Some(waits) => {
            assert!(waits.is_sorted_by(|one, other| one.waited >= other.waited), "{waits:?}");
            let mut waiters: Vec<u64> = waits.iter().map(|wait| wait.waiter).collect();
            waiters.sort_unstable();
            waiters.dedup();
            waiters.len() == count
        }
        None => super::metrics::gauge(locks, "hierlock_waiters") == i64::try_from(count).unwrap(),
    })
    .await;
}

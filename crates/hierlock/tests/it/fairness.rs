use std::sync::{Arc, Mutex};

use testkit::{eventually, need};

use super::*;

/// A stream of shared holders does not keep an exclusive one out for ever: those who come after it wait behind it.
#[tokio::test]
async fn whoever_wants_all_of_it_is_not_starved_by_those_who_share() {
    let _alone = LOOKING.lock().await;
    for place in need!(places().await) {
        let locks = place.locks().await;
        let first = locks.acquire(resource("u", "a", "1")).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let ask = |target: Target<'static>, name: &'static str| {
            let (locks, order) = (locks.clone(), order.clone());
            tokio::spawn(async move {
                let lock = locks.acquire(target).await.unwrap();
                order.lock().unwrap().push(name);
                lock.release().await.unwrap();
            })
        };
        let whole = ask(account("u", "a"), "whole");
        waiting(&locks, 1).await;
        let part = ask(resource("u", "a", "2"), "part");
        waiting(&locks, 2).await;
        assert!(order.lock().unwrap().is_empty(), "the one who shares waits behind the one who does not");
        first.release().await.unwrap();
        whole.await.unwrap();
        part.await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["whole", "part"]);
        assert_nothing_is_left(&locks).await;
    }
}

#[tokio::test]
async fn whoever_leaves_the_queue_is_waited_for_no_longer() {
    let _alone = LOOKING.lock().await;
    for place in need!(places().await) {
        let locks = place.locks().await;
        let first = locks.acquire(resource("u", "a", "1")).await.unwrap();
        let ask = |target: Target<'static>| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.acquire(target).await.unwrap() })
        };
        let whole = ask(account("u", "a"));
        waiting(&locks, 1).await;
        let part = ask(resource("u", "a", "2"));
        waiting(&locks, 2).await;
        whole.abort();
        let part = tokio::time::timeout(Duration::from_secs(5), part).await.unwrap().unwrap();
        part.release().await.unwrap();
        first.release().await.unwrap();
        assert_nothing_is_left(&locks).await;
    }
}

#[tokio::test]
async fn in_process_whoever_comes_first_is_served_first() {
    let _alone = LOOKING.lock().await;
    let locks = in_process();
    let first = locks.acquire(user("u")).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..50 {
        let (ours, order) = (locks.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let id = number.to_string();
            // Some share, some do not.
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

/// Waits until so many acquisitions are under way and, where there is a server, it has them in its queues.
async fn waiting(locks: &Locks, count: usize) {
    eventually("all are in the queue", PATIENCE, async || match locks.waits().await.unwrap() {
        Some(waits) => {
            assert!(waits.is_sorted_by(|one, other| one.since >= other.since), "{waits:?}");
            let mut waiters: Vec<u64> = waits.iter().map(|wait| wait.waiter).collect();
            waiters.sort_unstable();
            waiters.dedup();
            waiters.len() == count
        }
        None => super::measuring::gauge(locks, "hierlock_waiters") == i64::try_from(count).unwrap(),
    })
    .await;
}

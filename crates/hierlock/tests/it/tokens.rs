use base::Timestamp;
use futures::future::join_all;
use hierlock::{Error, FencingToken};
use sqlx::Executor;
use testkit::need;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_with_every_holder() {
    for store in need!(all_stores().await) {
        let (ours, theirs) = (store.locks().await, store.locks().await);
        let mut last = FencingToken(0);
        for round in 0..6 {
            let locks = if round % 2 == 0 { &ours } else { &theirs };
            // Also between a target and its ancestor.
            let target = if round % 3 == 0 { user("u") } else { account("u", "a") };
            let lock = locks.acquire(target).await.unwrap();
            let token = lock.fencing_token().await.unwrap();
            assert!(token > last, "{token:?} after {last:?}");
            let again = lock.fencing_token().await.unwrap();
            assert!(again > token);
            last = again;
            lock.release().await.unwrap();
        }
        let held =
            join_all((0..10).map(|number| {
                let locks = ours.clone();
                async move {
                    locks.acquire(user(&number.to_string())).await.unwrap().fencing_token().await.unwrap()
                }
            }));
        let mut tokens = held.await;
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 10, "no token is issued twice");
        assert!(tokens[0] > last);
    }
}

/// A token drawn after the loss of the lock could exceed that of the current holder.
#[tokio::test]
async fn no_token_after_the_lock_is_lost() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let lost = locks.acquire(user("u")).await.unwrap();
        let kill = format!("KILL {}", lost.session_id().unwrap());
        store.connect().await.execute(sqlx::AssertSqlSafe(kill)).await.unwrap();
        let next = locks.acquire(user("u")).await.unwrap();
        let refused = lost.fencing_token().await.unwrap_err();
        assert!(matches!(refused, Error::Lost), "{refused:?}");
        next.fencing_token().await.unwrap();
        next.release().await.unwrap();
        drop(lost);
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn ended_token_connection_is_replaced_transparently() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let lock = locks.acquire(user("u")).await.unwrap();
        let first = lock.fencing_token().await.unwrap();
        for session in store.sessions().await.into_iter().filter(|id| Some(*id) != lock.session_id()) {
            let kill = sqlx::AssertSqlSafe(format!("KILL {session}"));
            // Some sessions have already ended.
            let _ = store.connect().await.execute(kill).await;
        }
        assert!(lock.fencing_token().await.unwrap() > first);
        lock.release().await.unwrap();
    }
}

/// In process, tokens start at the clock's time, so that they exceed those of an earlier process.
#[tokio::test]
async fn tokens_of_a_later_process_are_larger() {
    let clock = Clock::manual(Timestamp::from_millis(1_000));
    let first = async || {
        let locks = LockManager::in_process(&options(), &clock);
        locks.acquire(user("u")).await.unwrap().fencing_token().await.unwrap()
    };
    let earlier = first().await;
    assert_eq!(earlier, FencingToken(1_000_001));
    clock.advance(Duration::from_millis(1));
    assert!(first().await > earlier);
}

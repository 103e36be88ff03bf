use base::Timestamp;
use futures::future::join_all;
use hierlock::{Error, FencingToken};
use sqlx::Executor;
use testkit::need;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_holder_has_a_larger_token_than_those_before() {
    for place in need!(places().await) {
        let (ours, theirs) = (place.locks().await, place.locks().await);
        let mut last = FencingToken(0);
        for round in 0..6 {
            let locks = if round % 2 == 0 { &ours } else { &theirs };
            // Also where one is above the other.
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
        assert_eq!(tokens.len(), 10, "none is given twice");
        assert!(tokens[0] > last);
    }
}

/// A token drawn after the lock was lost could be larger than that of whoever holds it now.
#[tokio::test]
async fn whoever_has_lost_the_lock_gets_no_token() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let lost = locks.acquire(user("u")).await.unwrap();
        let kill = format!("KILL {}", lost.session_id().unwrap());
        place.connect().await.execute(sqlx::AssertSqlSafe(kill)).await.unwrap();
        let next = locks.acquire(user("u")).await.unwrap();
        let refused = lost.fencing_token().await.unwrap_err();
        assert!(matches!(refused, Error::Lost), "{refused:?}");
        next.fencing_token().await.unwrap();
        next.release().await.unwrap();
        drop(lost);
        assert_nothing_is_left(&locks).await;
    }
}

#[tokio::test]
async fn the_connection_for_tokens_is_replaced_without_a_word() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let lock = locks.acquire(user("u")).await.unwrap();
        let first = lock.fencing_token().await.unwrap();
        for session in place.sessions().await.into_iter().filter(|id| Some(*id) != lock.session_id()) {
            let kill = sqlx::AssertSqlSafe(format!("KILL {session}"));
            // Some end by themselves.
            let _ = place.connect().await.execute(kill).await;
        }
        assert!(lock.fencing_token().await.unwrap() > first);
        lock.release().await.unwrap();
    }
}

/// In process the clock is where tokens begin, so that those of an earlier process were smaller.
#[tokio::test]
async fn tokens_of_a_later_process_are_larger() {
    let clock = Clock::manual(Timestamp::from_millis(1_000));
    let first = async || {
        let locks = Locks::in_process(&options(), &clock);
        locks.acquire(user("u")).await.unwrap().fencing_token().await.unwrap()
    };
    let earlier = first().await;
    assert_eq!(earlier, FencingToken(1_000_001));
    clock.advance(Duration::from_millis(1));
    assert!(first().await > earlier);
}

//! Mutual exclusion, release and sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use futures::future::join_all;
use testkit::{eventually, need};

use super::*;

#[tokio::test]
async fn lock_excludes_others_until_released_or_dropped() {
    for store in need!(all_stores().await) {
        let (ours, theirs) = (store.locks().await, store.locks().await);
        let lock = ours.acquire(account("u", "a")).await.unwrap();
        assert!(lock.is_valid() && !ours.is_idle());
        lock.check().await.unwrap();
        for (target, conflicts) in [
            (user("u"), true),
            (account("u", "a"), true),
            (resource("u", "a", "r"), true),
            (account("u", "b"), false),
            (resource("u", "b", "r"), false),
            (user("v"), false),
        ] {
            assert_eq!(is_free(&theirs, target).await, !conflicts, "{target}");
        }
        lock.release().await.unwrap();
        assert!(is_free(&theirs, user("u")).await);

        let dropped = ours.acquire(user("u")).await.unwrap();
        assert!(!is_free(&theirs, user("u")).await);
        drop(dropped);
        theirs.acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_idle(&ours).await;
        assert_idle(&theirs).await;
    }
}

#[tokio::test]
async fn several_resources_are_locked_together_without_their_siblings() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let many: Vec<String> = (0..150).map(|number| format!("item-{number}")).collect();
        let lock = locks.acquire_resources("u", "a", &many).await.unwrap();
        for number in [0, 63, 64, 65, 127, 128, 149] {
            assert!(!is_free(&locks, resource("u", "a", &many[number])).await, "{number}");
        }
        // With so few buckets another item may share a bucket, so one with a free bucket is chosen.
        let taken: Vec<u32> = many.iter().map(|id| resource("u", "a", id).bucket(BUCKETS)).collect();
        let free = (0..).map(|number| format!("other-{number}"));
        let free =
            free.into_iter().find(|id| !taken.contains(&resource("u", "a", id).bucket(BUCKETS))).unwrap();
        assert!(is_free(&locks, resource("u", "a", &free)).await);
        assert!(!is_free(&locks, account("u", "a")).await);
        lock.release().await.unwrap();
        assert!(is_free(&locks, account("u", "a")).await);
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn any_mix_of_targets_is_locked_in_the_stronger_mode() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let mix = [resource("u", "a", "r"), account("u", "a"), user("v"), resource("w", "a", "r"), user("v")];
        let lock = locks.acquire_all(mix).await.unwrap();
        for target in
            [resource("u", "a", "other"), account("u", "a"), resource("v", "x", "y"), resource("w", "a", "r")]
        {
            assert!(!is_free(&locks, target).await, "{target}");
        }
        for target in [account("u", "b"), resource("w", "a", "other")] {
            assert!(is_free(&locks, target).await, "{target}");
        }
        lock.release().await.unwrap();
        assert_idle(&locks).await;
    }
}

/// Ids may contain any character, including separators.
#[tokio::test]
async fn ids_may_contain_any_character() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let odd = ["a/b", "a%'\"\\;--", "日本語", "\0\n", " "];
        let held = locks.acquire_all(odd.map(user)).await.unwrap();
        for id in odd {
            assert!(!is_free(&locks, resource(id, "x", "y")).await, "{id:?}");
        }
        held.release().await.unwrap();
        assert_idle(&locks).await;
    }
}

/// A hundred tasks lock the same target.
#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_a_hundred_tasks_holds_the_lock() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let inside = Arc::new(AtomicI32::new(0));
        let entered = Arc::new(AtomicU32::new(0));
        let visit = |locks: LockManager, inside: Arc<AtomicI32>, entered: Arc<AtomicU32>| async move {
            let lock = locks.acquire(resource("u", "a", "r")).await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another task holds the lock");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            entered.fetch_add(1, Ordering::SeqCst);
            lock.release().await.unwrap();
        };
        let visits = (0..100).map(|_| tokio::spawn(visit(locks.clone(), inside.clone(), entered.clone())));
        join_all(visits).await.into_iter().for_each(Result::unwrap);
        assert_eq!(entered.load(Ordering::SeqCst), 100);
        assert_idle(&locks).await;
    }
}

/// Under REPEATABLE READ a missing row would lock the gap around it, and prevent its creation.
#[tokio::test]
async fn locks_are_held_under_read_committed() {
    const ISOLATION: &str =
        "SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ?";
    for store in need!(servers().await) {
        let lock = store.locks().await.acquire(user("u")).await.unwrap();
        let asking = sqlx::query_scalar(ISOLATION).bind(lock.session_id());
        let isolation: String = asking.fetch_one(&mut store.connect().await).await.unwrap();
        assert_eq!(isolation, "READ COMMITTED");
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn sessions_are_reused_and_closed_at_the_end() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut sessions = Vec::new();
        for round in 0..6 {
            let lock = locks.acquire(user("u")).await.unwrap();
            sessions.extend(lock.session_id());
            if round % 2 == 0 {
                lock.release().await.unwrap()
            } else {
                drop(lock)
            }
            assert_idle(&locks).await;
        }
        sessions.dedup();
        assert_eq!(sessions.len(), 1, "one connection is reused");
        let two = [locks.acquire(user("1")).await.unwrap(), locks.acquire(user("2")).await.unwrap()];
        for lock in two {
            sessions[0] = lock.session_id().unwrap();
            lock.release().await.unwrap();
        }
        let lock = locks.acquire(user("u")).await.unwrap();
        assert_eq!(
            lock.session_id(),
            Some(sessions[0]),
            "the last that was used, so that the others can be closed"
        );
        lock.release().await.unwrap();
        locks.close().await;
        let is_gone = || async { !store.sessions().await.contains(&sessions[0]) };
        eventually("the session is gone", TIMEOUT, is_gone).await;
        let closed = locks.acquire(user("u")).await.unwrap_err();
        assert!(matches!(closed, hierlock::Error::Unreachable(_)), "{closed:?}");
    }
}

/// One round trip to lock and one to release, for any set of targets. No statement is prepared twice.
#[tokio::test]
async fn lock_costs_two_round_trips() {
    let server = need!(SqlServer::private().await);
    let store = TestStore::on(&server).await;
    let locks = store.locks().await;
    let mut connection = store.connect().await;
    let mut counted = async |name: &'static str| -> u64 {
        let found: (String, String) = sqlx::query_as("SHOW GLOBAL STATUS WHERE Variable_name = ?")
            .bind(name)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        found.1.parse().unwrap()
    };
    let items: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let work = async || {
        locks.acquire(user("u")).await.unwrap().release().await.unwrap();
        locks.acquire(resource("u", "a", "r")).await.unwrap().release().await.unwrap();
        locks.acquire_resources("u", "a", &items).await.unwrap().release().await.unwrap();
    };
    work().await;
    let prepared = counted("Com_stmt_prepare").await;
    let before = counted("Questions").await;
    for _ in 0..10 {
        work().await;
    }
    let after = counted("Questions").await;
    assert_eq!(after - before, 10 * 3 * 2 + 1, "plus the query that counts");
    assert_eq!(counted("Com_stmt_prepare").await, prepared);
}

#[tokio::test]
async fn idle_sessions_are_closed() {
    for store in need!(servers().await) {
        let hour = Duration::from_secs(3_600);
        let locks = store.locks_with(Options { heartbeat: hour, ..options() }).await;
        let held = [locks.acquire(user("1")).await.unwrap(), locks.acquire(user("2")).await.unwrap()];
        let sessions = held.each_ref().map(|lock| lock.session_id().unwrap());
        let [needed, not_needed] = held;
        not_needed.release().await.unwrap();
        // The pool checks sessions twice per heartbeat. Only this process's clock advances, not the server's.
        tokio::time::pause();
        tokio::time::advance(hour / 2).await;
        tokio::time::resume();
        let left = async || {
            let there = store.sessions().await;
            sessions.map(|session| there.contains(&session))
        };
        eventually("only the session in use is left", TIMEOUT, async || left().await == [true, false]).await;
        assert!(needed.is_valid());
        needed.release().await.unwrap();
    }
}

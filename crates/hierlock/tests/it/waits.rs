//! Who waits, and who blocks.

use base::Timestamp;
use hierlock::{Error, LockWait, RowHolders};
use sqlx::{Connection, Executor};
use testkit::{eventually, need};

use super::*;

/// The first transaction holds a bucket. The second one waits for it and holds another bucket, for which the third one waits.
#[tokio::test]
async fn server_shows_who_waits_for_whom_and_since_when() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let before = now(&store).await;
        let first = locks.acquire(user("first")).await.unwrap();
        let mut connection = store.connect().await;
        let mut second = connection.begin().await.unwrap();
        let second_id: u64 = sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS UNSIGNED)")
            .fetch_one(&mut *second)
            .await
            .unwrap();
        locks.lock_in_transaction(&mut second, [account("other", "a")]).await.unwrap();
        let third_waits = locks.acquire(account("other", "a"));
        let watch = async {
            let expected = [
                (first.session_id().unwrap(), user("first").bucket(BUCKETS)),
                (second_id, account("other", "a").bucket(BUCKETS)),
            ];
            let waits = eventually("both waits are shown", TIMEOUT, || async {
                let waits = locks.lock_waits().await.unwrap().unwrap();
                let shown: Vec<(u64, u32)> =
                    waits.iter().map(|wait| (wait.holder, wait.row.bucket)).collect();
                let has_both = waits.len() == 2 && expected.iter().all(|pair| shown.contains(pair));
                let has_times = waits.iter().all(|wait| wait.since.is_some());
                if has_both && has_times { Ok(waits) } else { Err(format!("{waits:?}")) }
            })
            .await;
            assert!(waits.iter().any(|wait| wait.waiter == second_id), "{waits:?}");
            let after = now(&store).await;
            for since in waits.iter().filter_map(|wait| wait.since) {
                assert!((before..=after).contains(&since), "{before:?} {since:?} {after:?}");
            }
            let again = locks.lock_waits().await.unwrap().unwrap();
            let times = |waits: &[LockWait]| waits.iter().map(|wait| wait.since).collect::<Vec<_>>();
            assert_eq!(times(&waits), times(&again), "the time is absolute");
            first.release().await.unwrap();
        };
        let release_second = async {
            locks.lock_in_transaction(&mut second, [user("first")]).await.unwrap();
            second.rollback().await.unwrap();
        };
        let (third, (), ()) = tokio::join!(third_waits, release_second, watch);
        third.unwrap().release().await.unwrap();
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn session_that_others_wait_for_can_be_ended() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut connection = store.connect().await;
        let mut forgotten = connection.begin().await.unwrap();
        let session: u64 = sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS UNSIGNED)")
            .fetch_one(&mut *forgotten)
            .await
            .unwrap();
        assert!(!locks.end_blocking_session(session).await.unwrap(), "it holds nothing");
        locks.lock_in_transaction(&mut forgotten, [user("u")]).await.unwrap();
        assert!(!locks.end_blocking_session(session).await.unwrap(), "nobody waits for it");
        let end = async {
            eventually("the session in the way is ended", TIMEOUT, || async {
                locks.end_blocking_session(session).await.unwrap()
            })
            .await;
        };
        let (waited, ()) = tokio::join!(locks.acquire(user("u")), end);
        waited.unwrap().release().await.unwrap();
        assert!(forgotten.rollback().await.is_err(), "its connection is closed");
        assert_idle(&locks).await;
    }
    assert!(!in_process().end_blocking_session(1).await.unwrap());
}

/// Returns the server's time in whole seconds.
async fn now(store: &TestStore) -> Timestamp {
    let seconds: i64 = sqlx::query_scalar("SELECT CAST(UNIX_TIMESTAMP() AS SIGNED)")
        .fetch_one(&mut store.connect().await)
        .await
        .unwrap();
    Timestamp::from_millis(seconds * 1_000)
}

#[tokio::test]
async fn missing_privilege_to_see_waits_is_reported_by_its_name() {
    for store in need!(servers().await) {
        let name = store.options().get_database().unwrap().to_owned();
        let mut root = store.connect().await;
        for text in ["CREATE USER 'NAME'@'%' IDENTIFIED BY 'x'", "GRANT ALL ON NAME.* TO 'NAME'@'%'"] {
            root.execute(sqlx::AssertSqlSafe(text.replace("NAME", &name))).await.unwrap();
        }
        let options = store.options().username(&name).password("x");
        let locks = LockManager::mysql(options.clone(), &super::options()).await.unwrap();
        // Twice: the first refusal does not cost the connection.
        for _ in 0..2 {
            let error = locks.lock_waits().await.unwrap_err();
            assert!(matches!(error, Error::MissingPrivilege(_)), "{error:?}");
            let text = base::error::chain(&error);
            assert!(text.contains("PROCESS") || text.contains("data_lock_waits"), "{text}");
        }
        let grants =
            ["GRANT PROCESS ON *.* TO 'NAME'@'%'", "GRANT SELECT ON performance_schema.* TO 'NAME'@'%'"];
        for text in grants {
            root.execute(sqlx::AssertSqlSafe(text.replace("NAME", &name))).await.unwrap();
        }
        assert_eq!(hierlock::lock_waits(options).await.unwrap(), [], "with both grants");
        locks.close().await;
        root.execute(sqlx::AssertSqlSafe(format!("DROP USER '{name}'@'%'"))).await.unwrap();
    }
}

#[tokio::test]
async fn requests_that_wait_in_process_are_shown_with_their_targets() {
    let locks = in_process();
    assert_eq!(locks.lock_waits().await.unwrap(), None);
    assert_eq!(locks.in_process_waits().unwrap(), []);
    let held = locks.acquire(account("u", "a")).await.unwrap();
    let mut sword = Box::pin(locks.acquire(resource("u", "a", "sword")));
    assert!(futures::poll!(&mut sword).is_pending());
    let mut whole_user = Box::pin(locks.acquire(user("u")));
    assert!(futures::poll!(&mut whole_user).is_pending());
    let mut shield = Box::pin(locks.acquire(resource("u", "a", "shield")));
    assert!(futures::poll!(&mut shield).is_pending());

    let waits = locks.in_process_waits().unwrap();
    let shown = waits.iter().map(|wait| {
        let target = wait.target.as_ref().unwrap().as_target().to_string();
        (target, wait.row.level.as_str(), wait.ahead, wait.holders)
    });
    let mut shown: Vec<_> = shown.collect();
    shown.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(
        shown,
        [
            ("u".to_owned(), "user", 0, RowHolders::Shared(2)),
            ("u/a/shield".to_owned(), "user", 1, RowHolders::Shared(2)),
            ("u/a/sword".to_owned(), "account", 0, RowHolders::Exclusive),
        ]
    );
    assert_eq!(waits, locks.in_process_waits().unwrap(), "the time is absolute");
    drop((sword, whole_user, shield));
    assert_eq!(locks.in_process_waits().unwrap(), []);
    held.release().await.unwrap();
    assert_idle(&locks).await;
}

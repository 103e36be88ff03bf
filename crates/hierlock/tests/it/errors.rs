use base::Code;
use base::error::Coded;
use hierlock::{EmptyId, Error, Level, Row};
use sqlx::Executor;
use testkit::need;

use super::*;

#[tokio::test]
async fn invalid_targets_are_refused() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let nothing = locks.acquire_all([]).await.unwrap_err();
        assert!(matches!(nothing, Error::NoTargets), "{nothing:?}");
        let empty = locks.acquire_resources("u", "a", ["r", ""]).await.unwrap_err();
        assert!(matches!(empty, Error::EmptyId(EmptyId(Level::Resource))), "{empty:?}");
        assert_eq!((nothing.code(), empty.code()), (Code::InvalidArgument, Code::InvalidArgument));
        assert!(!empty.is_safe_to_retry());
        assert!(locks.acquire_resources("u", "a", [""; 0]).await.is_err());
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn timeout_is_exact_and_leaves_nothing_held() {
    for store in need!(all_stores().await) {
        let locks = store.locks().await;
        let held = locks.acquire(account("u", "a")).await.unwrap();
        let began = std::time::Instant::now();
        let late = locks
            .with_timeout(Duration::from_millis(150))
            .acquire(resource("u", "a", "r"))
            .await
            .unwrap_err();
        assert!(matches!(late, Error::Timeout(after) if after == Duration::from_millis(150)), "{late:?}");
        assert!(began.elapsed() >= Duration::from_millis(150) && began.elapsed() < Duration::from_secs(2));
        assert!(late.is_safe_to_retry());
        assert_eq!(late.code(), Code::Timeout);
        // The user's row was locked first, and is released.
        held.release().await.unwrap();
        locks.with_timeout(Duration::from_secs(2)).acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn timeout_cannot_exceed_the_options() {
    for store in need!(servers().await) {
        let few = Duration::from_millis(100);
        let locks = store.locks_with(Options { wait_timeout: few, ..options() }).await;
        let held = locks.acquire(user("u")).await.unwrap();
        let late = locks.with_timeout(TIMEOUT).acquire(user("u")).await.unwrap_err();
        assert!(matches!(late, Error::Timeout(after) if after == few), "{late:?}");
        held.release().await.unwrap();
    }
}

/// The server's own limit ends the wait of a client that disappeared.
#[tokio::test]
async fn server_side_limit_is_a_timeout_too() {
    let server = need!(SqlServer::shared().await);
    let store = TestStore::on(server).await;
    let locks = store.locks().await;
    let held = locks.acquire(user("u")).await.unwrap();
    let mut connection = store.connect().await;
    connection.execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
    let mut tx = sqlx::Connection::begin(&mut connection).await.unwrap();
    let late = locks.lock_in_transaction(&mut tx, [account("u", "a")]).await.unwrap_err();
    assert!(matches!(late, Error::Timeout(_)), "{late:?}");
    tx.rollback().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn exhausted_connections_are_reported() {
    for store in need!(servers().await) {
        let few = Options { max_connections: 2, ..options() };
        let locks = store.locks_with(few).await.with_timeout(Duration::from_millis(100));
        let held = [locks.acquire(user("1")).await.unwrap(), locks.acquire(user("2")).await.unwrap()];
        let none = locks.acquire(user("3")).await.unwrap_err();
        assert!(matches!(none, Error::NoConnection { max_connections: 2, .. }), "{none:?}");
        assert!(none.to_string().contains("none of the 2 connections"), "{none}");
        assert!(none.is_safe_to_retry());
        let row = Row { level: Level::User, bucket: user("3").bucket(BUCKETS) };
        assert!(
            locks.hot_rows(10).iter().all(|hot| hot.row != row),
            "the wait was for a connection, not for that row"
        );
        drop(held);
        assert_idle(&locks).await;
    }
}

/// With any options, nothing panics and nothing waits forever.
#[tokio::test]
async fn extreme_options_are_clamped() {
    for store in need!(servers().await) {
        let open = async |options: Options| {
            tokio::time::timeout(TIMEOUT, LockManager::mysql(store.options(), &options))
                .await
                .unwrap()
                .unwrap()
        };
        let none = open(Options { max_connections: 0, ..options() }).await;
        let refused = none.with_timeout(Duration::from_millis(50)).acquire(user("u")).await.unwrap_err();
        assert!(matches!(refused, Error::NoConnection { max_connections: 0, .. }), "{refused:?}");
        let longest = Options { wait_timeout: Duration::MAX, heartbeat: Duration::MAX, ..options() };
        let shortest = Options { heartbeat: Duration::ZERO, ..options() };
        for odd in [longest, shortest] {
            let locks = open(odd).await;
            let lock = locks.acquire(user("u")).await.unwrap();
            lock.check().await.unwrap();
            assert!(lock.is_valid());
            lock.release().await.unwrap();
        }
    }
    let locks =
        LockManager::in_process(&Options { wait_timeout: Duration::MAX, ..options() }, &Clock::system());
    locks.acquire(user("u")).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn missing_bucket_is_reported_with_a_remedy_and_nothing_stays_locked() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let target = resource("u", "a", "r");
        let bucket = target.bucket(BUCKETS);
        let delete = format!("DELETE FROM hier_lock_buckets WHERE level = 2 AND bucket = {bucket}");
        store.connect().await.execute(sqlx::AssertSqlSafe(delete)).await.unwrap();
        let missing = locks.acquire(target).await.unwrap_err();
        let Error::MissingBucket(row) = missing else { panic!("{missing:?}") };
        // Rows that were locked before the missing one are released.
        let theirs = store.locks().await.with_timeout(Duration::from_secs(3));
        theirs.acquire(user("u")).await.unwrap().release().await.unwrap();
        assert_eq!(row, Row { level: Level::Resource, bucket });
        let text = missing.to_string();
        assert!(text.contains(&format!("bucket {bucket} of level 2 (resource)")), "{text}");
        assert!(text.contains("playhouse locks provision"), "{text}");
        locks.acquire(user("u")).await.unwrap().release().await.unwrap();
        // Also if another level has a bucket with that number.
        let mut ids = (0..100_000).map(|number| number.to_string());
        let bucket = user("u").bucket(BUCKETS);
        let twin = ids.find(|id| account("u", id).bucket(BUCKETS) == bucket).unwrap();
        let delete = format!("DELETE FROM hier_lock_buckets WHERE level = 1 AND bucket = {bucket}");
        store.connect().await.execute(sqlx::AssertSqlSafe(delete)).await.unwrap();
        let missing = locks.acquire(account("u", &twin)).await.unwrap_err();
        let expected = Row { level: Level::Account, bucket };
        assert!(matches!(missing, Error::MissingBucket(found) if found == expected), "{missing:?}");
        // Also if it is one of many.
        let many: Vec<String> = (0..40).map(|number| number.to_string()).chain(["r".to_owned()]).collect();
        let missing = locks.acquire_resources("u", "a", &many).await.unwrap_err();
        assert!(matches!(missing, Error::MissingBucket(found) if found == row), "{missing:?}");
        assert_idle(&locks).await;
    }
}

#[tokio::test]
async fn database_with_a_different_or_no_bucket_space_is_refused() {
    for store in need!(servers().await) {
        let open =
            async |buckets| LockManager::mysql(store.options(), &Options { buckets, ..options() }).await;
        let other = open(BUCKETS + 1).await.unwrap_err();
        assert!(matches!(other, Error::BucketSpaceMismatch { .. }), "{other:?}");
        let text = other.to_string();
        assert!(
            text.contains(&format!("{BUCKETS} buckets")) && text.contains(&format!("{}", BUCKETS + 1)),
            "{text}"
        );

        let mut connection = store.connect().await;
        // A running manager refuses new connections too.
        let running = open(BUCKETS).await.unwrap();
        let held = running.acquire(user("u")).await.unwrap();
        connection.execute("UPDATE hier_lock_space SET hash = 'another'").await.unwrap();
        let other = running.acquire(user("v")).await.unwrap_err();
        assert!(
            matches!(&other, Error::BucketSpaceMismatch { recorded, .. } if recorded.hash == "another"),
            "{other:?}"
        );
        drop(held);
        assert!(matches!(open(BUCKETS).await.unwrap_err(), Error::BucketSpaceMismatch { .. }));

        connection.execute("DELETE FROM hier_lock_space").await.unwrap();
        let none = open(BUCKETS).await.unwrap_err();
        assert!(matches!(none, Error::NotProvisioned), "{none:?}");
        assert!(none.to_string().contains("playhouse locks provision"), "{none}");
        connection.execute("DROP TABLE hier_lock_space").await.unwrap();
        let none = open(BUCKETS).await.unwrap_err();
        assert!(matches!(none, Error::MissingTables(_)), "{none:?}");
        assert!(none.to_string().contains("playhouse migrate"), "{none}");
    }
}

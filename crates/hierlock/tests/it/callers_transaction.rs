//! Locks inside the caller's transaction.

use hierlock::Error;
use sqlx::{Connection, Executor};
use testkit::{eventually, need};

use super::*;

#[tokio::test]
async fn write_and_its_locks_are_one_transaction() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut connection = store.connect().await;
        connection.execute("CREATE TABLE item (id INT PRIMARY KEY)").await.unwrap();
        for commit in [true, false] {
            let mut tx = connection.begin().await.unwrap();
            locks.lock_in_transaction(&mut tx, [resource("u", "a", "r")]).await.unwrap();
            tx.execute("INSERT INTO item (id) VALUES (1)").await.unwrap();
            assert!(!is_free(&locks, account("u", "a")).await, "held until the transaction ends");
            if commit {
                tx.commit().await.unwrap()
            } else {
                tx.rollback().await.unwrap()
            }
            assert!(is_free(&locks, account("u", "a")).await);
            let rows = connection.execute("DELETE FROM item").await.unwrap().rows_affected();
            assert_eq!(rows, u64::from(commit));
        }
    }
}

#[tokio::test]
async fn locking_without_a_transaction_is_refused() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut connection = store.connect().await;
        let refused = locks.lock_in_transaction(&mut connection, [user("u")]).await.unwrap_err();
        assert!(matches!(refused, Error::NoTransaction), "{refused:?}");
        let in_process = in_process();
        let mut tx = connection.begin().await.unwrap();
        assert!(matches!(
            in_process.lock_in_transaction(&mut tx, [user("u")]).await,
            Err(Error::NoTransaction)
        ));
    }
}

/// A wait ends by its timeout or by dropping the future. Both release the transaction's locks and remove its waiter.
#[tokio::test]
async fn cancelled_wait_ends_the_transaction_on_the_server() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(servers().await) {
        let locks = store.locks().await;
        for by_deadline in [true, false] {
            let held = locks.acquire(account("u", "a")).await.unwrap();
            let mut connection = store.connect().await;
            let mut tx = connection.begin().await.unwrap();
            locks.lock_in_transaction(&mut tx, [user("early")]).await.unwrap();
            if by_deadline {
                let hasty = locks.with_timeout(Duration::from_millis(200));
                let late = hasty.lock_in_transaction(&mut tx, [resource("u", "a", "r")]).await.unwrap_err();
                assert!(matches!(late, Error::Timeout(_)), "{late:?}");
            } else {
                let waiting = locks.lock_in_transaction(&mut tx, [resource("u", "a", "r")]);
                assert!(tokio::time::timeout(Duration::from_millis(200), waiting).await.is_err());
            }
            let early = locks.with_timeout(Duration::from_secs(3)).acquire(user("early")).await.unwrap();
            early.release().await.unwrap();
            eventually("no waiter is left", TIMEOUT, || async {
                locks.lock_waits().await.unwrap().unwrap().is_empty()
            })
            .await;
            held.release().await.unwrap();
        }
        assert_idle(&locks).await;
    }
}

/// A caller's transaction does not check the number of buckets. A pooled session prevents that buckets are added. A process without
/// a session must check again.
#[tokio::test]
async fn process_that_missed_added_buckets_is_refused() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let join = async || {
            let mut connection = store.connect().await;
            let mut tx = connection.begin().await.unwrap();
            locks.lock_in_transaction(&mut tx, [user("u")]).await
        };
        join().await.unwrap();
        for session in store.sessions().await {
            let kill = sqlx::AssertSqlSafe(format!("KILL {session}"));
            // Some sessions have already ended.
            let _ = store.connect().await.execute(kill).await;
        }
        eventually("no session is left", TIMEOUT, async || {
            Provisioner::new(store.options(), BUCKETS + 1).run(|_| ()).await
        })
        .await;
        eventually("the change is detected", TIMEOUT, async || match join().await {
            Err(Error::BucketSpaceMismatch { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

/// Servers report an ended connection with different errors.
#[tokio::test]
async fn transaction_that_was_idle_for_too_long_is_unreachable() {
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut connection = store.connect().await;
        let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut connection).await.unwrap();
        connection.execute("SET SESSION wait_timeout = 1").await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        let has_ended = async || !store.sessions().await.contains(&id);
        eventually("the server has ended it", TIMEOUT, has_ended).await;
        let gone = locks.lock_in_transaction(&mut tx, [user("u")]).await.unwrap_err();
        assert!(matches!(gone, Error::Unreachable(_)), "{gone:?}");
    }
}

/// Under REPEATABLE READ, too: a locking read does not create the transaction's snapshot.
#[tokio::test]
async fn reads_after_the_lock_see_the_previous_holders_writes() {
    let _alone = WAIT_TABLES.lock().await;
    for store in need!(servers().await) {
        let locks = store.locks().await;
        let mut ours = store.connect().await;
        ours.execute("CREATE TABLE item (id INT PRIMARY KEY)").await.unwrap();
        ours.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        let mut theirs = store.connect().await;
        let mut before = theirs.begin().await.unwrap();
        locks.lock_in_transaction(&mut before, [account("u", "a")]).await.unwrap();
        let mut tx = ours.begin().await.unwrap();
        let write = async {
            let waits = async || locks.lock_waits().await.unwrap().unwrap().len() == 1;
            eventually("the other waits", TIMEOUT, waits).await;
            before.execute("INSERT INTO item (id) VALUES (1)").await.unwrap();
            before.commit().await.unwrap();
        };
        let (joined, ()) = tokio::join!(locks.lock_in_transaction(&mut tx, [resource("u", "a", "r")]), write);
        joined.unwrap();
        let items: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM item").fetch_one(&mut *tx).await.unwrap();
        assert_eq!(items, 1);
        tx.rollback().await.unwrap();
    }
}

/// A session of another database user cannot be killed. That must not block the next kills.
#[tokio::test]
async fn session_that_cannot_be_killed_blocks_no_other() {
    let server = need!(SqlServer::shared().await);
    let store = TestStore::on(server).await;
    let mut connection = store.connect().await;
    let name: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut connection).await.unwrap();
    for text in ["CREATE USER 'NAME'@'%' IDENTIFIED BY 'x'", "GRANT ALL ON NAME.* TO 'NAME'@'%'"] {
        connection.execute(sqlx::AssertSqlSafe(text.replace("NAME", &name))).await.unwrap();
    }
    let limited = store.options().username(&name).password("x");
    let locks = LockManager::mysql(limited, &options()).await.unwrap();
    let held = locks.acquire(user("u")).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let hasty = locks.with_timeout(Duration::from_millis(100));
    assert!(matches!(hasty.lock_in_transaction(&mut tx, [user("u")]).await, Err(Error::Timeout(_))));
    assert!(!is_free(&locks, user("u")).await, "it times out and is killed after the other");
    held.release().await.unwrap();
    eventually("all permits are free", Duration::from_secs(5), || async { locks.is_idle() }).await;
    tx.rollback().await.unwrap();
    connection.execute(sqlx::AssertSqlSafe(format!("DROP USER '{name}'@'%'"))).await.unwrap();
}

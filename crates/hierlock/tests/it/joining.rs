//! Locks inside a transaction of the caller's.

use hierlock::Error;
use sqlx::{Connection, Executor};
use testkit::{eventually, need};

use super::*;

#[tokio::test]
async fn the_write_and_its_locks_are_one_transaction() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let mut connection = place.connect().await;
        connection.execute("CREATE TABLE item (id INT PRIMARY KEY)").await.unwrap();
        for commit in [true, false] {
            let mut tx = connection.begin().await.unwrap();
            locks.lock_in(&mut tx, [resource("u", "a", "r")]).await.unwrap();
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
async fn without_a_transaction_there_is_nothing_to_join() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let mut connection = place.connect().await;
        let refused = locks.lock_in(&mut connection, [user("u")]).await.unwrap_err();
        assert!(matches!(refused, Error::NoTransaction), "{refused:?}");
        let in_process = in_process();
        let mut tx = connection.begin().await.unwrap();
        assert!(matches!(in_process.lock_in(&mut tx, [user("u")]).await, Err(Error::NoTransaction)));
    }
}

/// Given up by its deadline, and by dropping the future: either way the transaction's locks are gone, and its waiter.
#[tokio::test]
async fn a_wait_that_is_given_up_ends_the_transaction_on_the_server() {
    let _alone = LOOKING.lock().await;
    for place in need!(servers().await) {
        let locks = place.locks().await;
        for by_deadline in [true, false] {
            let held = locks.acquire(account("u", "a")).await.unwrap();
            let mut connection = place.connect().await;
            let mut tx = connection.begin().await.unwrap();
            locks.lock_in(&mut tx, [user("early")]).await.unwrap();
            if by_deadline {
                let hasty = locks.within(Duration::from_millis(200));
                let late = hasty.lock_in(&mut tx, [resource("u", "a", "r")]).await.unwrap_err();
                assert!(matches!(late, Error::Timeout(_)), "{late:?}");
            } else {
                let waiting = locks.lock_in(&mut tx, [resource("u", "a", "r")]);
                assert!(tokio::time::timeout(Duration::from_millis(200), waiting).await.is_err());
            }
            let early = locks.within(Duration::from_secs(3)).acquire(user("early")).await.unwrap();
            early.release().await.unwrap();
            eventually("no waiter is left", PATIENCE, || async {
                locks.waits().await.unwrap().unwrap().is_empty()
            })
            .await;
            held.release().await.unwrap();
        }
        assert_nothing_is_left(&locks).await;
    }
}

/// A transaction knows nothing of buckets. That nobody adds some is known from a session of our own: those who are not
/// connected are not asked, and look again.
#[tokio::test]
async fn whoever_was_away_while_buckets_were_added_cannot_join() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let join = async || {
            let mut connection = place.connect().await;
            let mut tx = connection.begin().await.unwrap();
            locks.lock_in(&mut tx, [user("u")]).await
        };
        join().await.unwrap();
        for session in place.sessions().await {
            let kill = sqlx::AssertSqlSafe(format!("KILL {session}"));
            // Some end by themselves.
            let _ = place.connect().await.execute(kill).await;
        }
        eventually("nobody is there", PATIENCE, async || {
            Provision::new(place.options(), BUCKETS + 1).run(|_| ()).await
        })
        .await;
        eventually("it is seen", PATIENCE, async || match join().await {
            Err(Error::OtherSpace { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

/// Servers have different words for a connection that they have ended.
#[tokio::test]
async fn a_transaction_that_was_idle_for_too_long_is_out_of_reach() {
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let mut connection = place.connect().await;
        let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut connection).await.unwrap();
        connection.execute("SET SESSION wait_timeout = 1").await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        let has_ended = async || !place.sessions().await.contains(&id);
        eventually("the server has ended it", PATIENCE, has_ended).await;
        let gone = locks.lock_in(&mut tx, [user("u")]).await.unwrap_err();
        assert!(matches!(gone, Error::Unreachable(_)), "{gone:?}");
    }
}

/// Under REPEATABLE READ, too, where a transaction sees what was there when it first looked: locking is not looking.
#[tokio::test]
async fn what_is_read_behind_the_lock_is_what_the_holder_before_has_written() {
    let _alone = LOOKING.lock().await;
    for place in need!(servers().await) {
        let locks = place.locks().await;
        let mut ours = place.connect().await;
        ours.execute("CREATE TABLE item (id INT PRIMARY KEY)").await.unwrap();
        ours.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        let mut theirs = place.connect().await;
        let mut before = theirs.begin().await.unwrap();
        locks.lock_in(&mut before, [account("u", "a")]).await.unwrap();
        let mut tx = ours.begin().await.unwrap();
        let write = async {
            let waits = async || locks.waits().await.unwrap().unwrap().len() == 1;
            eventually("the other waits", PATIENCE, waits).await;
            before.execute("INSERT INTO item (id) VALUES (1)").await.unwrap();
            before.commit().await.unwrap();
        };
        let (joined, ()) = tokio::join!(locks.lock_in(&mut tx, [resource("u", "a", "r")]), write);
        joined.unwrap();
        let items: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM item").fetch_one(&mut *tx).await.unwrap();
        assert_eq!(items, 1);
        tx.rollback().await.unwrap();
    }
}

/// The session of another user cannot be killed, and that is no reason to let others wait for their turn.
#[tokio::test]
async fn what_cannot_be_killed_holds_up_nobody() {
    let server = need!(SqlServer::shared().await);
    let place = Place::on(server).await;
    let mut connection = place.connect().await;
    let name: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut connection).await.unwrap();
    for text in ["CREATE USER 'NAME'@'%' IDENTIFIED BY 'x'", "GRANT ALL ON NAME.* TO 'NAME'@'%'"] {
        connection.execute(sqlx::AssertSqlSafe(text.replace("NAME", &name))).await.unwrap();
    }
    let limited = place.options().username(&name).password("x");
    let locks = Locks::mysql(limited, &options()).await.unwrap();
    let held = locks.acquire(user("u")).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let hasty = locks.within(Duration::from_millis(100));
    assert!(matches!(hasty.lock_in(&mut tx, [user("u")]).await, Err(Error::Timeout(_))));
    assert!(!is_free(&locks, user("u")).await, "it gives up, and is killed after the other");
    held.release().await.unwrap();
    eventually("all places are free", Duration::from_secs(5), || async { locks.is_idle() }).await;
    tx.rollback().await.unwrap();
    connection.execute(sqlx::AssertSqlSafe(format!("DROP USER '{name}'@'%'"))).await.unwrap();
}

//! Transactions that hold locks.

use base::Clock;
use base::error::Coded;
use hierlock::{LockManager, Options, Provisioner, Target, create_tables};
use sqlx::ConnectOptions;
use testkit::need;

use super::*;

const BUCKETS: u32 = 1_000;

/// Opens the locks that belong to the store: on the server's rows, or in process for SQLite.
pub(super) async fn locks(place: &Place) -> LockManager {
    let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
    let Some(server) = place.config().server() else {
        return LockManager::in_process(&options, &Clock::system());
    };
    create_tables(&mut server.connect().await.unwrap()).await.unwrap();
    Provisioner::new(server.clone(), BUCKETS).run(|_| ()).await.unwrap();
    LockManager::mysql(server, &options).await.unwrap()
}

async fn is_free(locks: &LockManager, target: Target<'_>) -> bool {
    locks.with_timeout(Duration::from_millis(100)).acquire(target).await.is_ok()
}

#[tokio::test]
async fn transaction_holds_its_locks_until_commit_rollback_or_drop() {
    for place in need!(Place::all().await) {
        let (db, locks) = (place.open().await, locks(&place).await);
        let (sword, account) =
            (Target::resource("u", "a", "sword").unwrap(), Target::account("u", "a").unwrap());
        for end in ["commit", "rollback", "drop"] {
            let tx = db.begin_locked(&locks, &[sword]).await.unwrap();
            assert!(!is_free(&locks, account).await, "{end}");
            match end {
                "commit" => tx.commit().await.unwrap(),
                "rollback" => tx.rollback().await.unwrap(),
                _ => drop(tx),
            }
            let next = locks.with_timeout(Duration::from_secs(3)).acquire(account).await;
            next.unwrap().release().await.unwrap();
        }
        db.close().await;
    }
}

#[tokio::test]
async fn transaction_knows_which_targets_it_holds() {
    for place in need!(Place::all().await) {
        let (db, locks) = (place.open().await, locks(&place).await);
        let (sword, account) =
            (Target::resource("u", "a", "sword").unwrap(), Target::account("u", "a").unwrap());
        let shield = Target::resource("v", "a", "shield").unwrap();
        let tx = db.begin_locked(&locks, &[account, shield]).await.unwrap();
        assert!(tx.holds(&account) && tx.holds(&sword) && tx.holds(&shield));
        assert!(!tx.holds(&Target::user("u").unwrap()) && !tx.holds(&Target::account("v", "a").unwrap()));
        tx.rollback().await.unwrap();
        let tx = db.begin().await.unwrap();
        assert!(!tx.holds(&sword));
        tx.rollback().await.unwrap();
        db.close().await;
    }
}

/// On SQLite, a writer that waited for the lock would deadlock with the lock's holder when that begins to write.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_for_a_lock_does_not_block_the_holder_from_writing() {
    for place in need!(Place::all().await) {
        let (db, locks) = (place.open().await, locks(&place).await);
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let waiting = tokio::spawn({
            let (db, locks) = (db.clone(), locks.clone());
            async move { db.begin_locked(&locks, &[user]).await.unwrap().commit().await.unwrap() }
        });
        testkit::eventually("the transaction waits", PATIENCE, || async { !locks.is_idle() }).await;
        tokio::time::timeout(Duration::from_secs(3), db.begin())
            .await
            .unwrap()
            .unwrap()
            .commit()
            .await
            .unwrap();
        assert!(!waiting.is_finished());
        held.release().await.unwrap();
        waiting.await.unwrap();
        db.close().await;
    }
}

#[tokio::test]
async fn lock_timeout_fails_the_transaction_and_frees_its_connection() {
    for place in need!(Place::all().await) {
        let mut config = place.config();
        config.max_connections = 1;
        let (db, locks) = (db::Db::open(&config).await.unwrap(), locks(&place).await);
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let impatient = locks.with_timeout(Duration::from_millis(100));
        for _ in 0..3 {
            let error = db.begin_locked(&impatient, &[user]).await.unwrap_err();
            assert!(matches!(error, db::Error::Lock(hierlock::Error::Timeout(_))), "{error:?}");
            assert!(error.is_transient());
        }
        held.release().await.unwrap();
        db.begin_locked(&locks, &[user]).await.unwrap().commit().await.unwrap();
        db.close().await;
    }
}

//! Transactions that hold locks.

use base::Clock;
use base::error::Coded;
use hierlock::{Locks, Options, Provision, Target, create_tables};
use sqlx::ConnectOptions;
use testkit::need;

use super::*;

const BUCKETS: u32 = 1_000;

/// The locks that go with the store: on its rows, or in process where it is embedded.
pub(super) async fn locks(place: &Place) -> Locks {
    let options = Options { buckets: BUCKETS, wait_timeout: PATIENCE, ..Options::default() };
    let Some(server) = place.config().server() else {
        return Locks::in_process(&options, &Clock::system());
    };
    create_tables(&mut server.connect().await.unwrap()).await.unwrap();
    Provision::new(server.clone(), BUCKETS).run(|_| ()).await.unwrap();
    Locks::mysql(server, &options).await.unwrap()
}

async fn is_free(locks: &Locks, target: Target<'_>) -> bool {
    locks.within(Duration::from_millis(100)).acquire(target).await.is_ok()
}

#[tokio::test]
async fn a_transaction_holds_its_locks_until_it_ends_however_it_does() {
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
            let next = locks.within(Duration::from_secs(3)).acquire(account).await;
            next.unwrap().release().await.unwrap();
        }
        db.close().await;
    }
}

#[tokio::test]
async fn a_transaction_knows_what_it_holds() {
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

/// Whoever holds a lock and begins to write must not meet a writer that waits for that lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_waits_for_a_lock_does_not_keep_its_holder_from_writing() {
    for place in need!(Place::all().await) {
        let (db, locks) = (place.open().await, locks(&place).await);
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let waiting = tokio::spawn({
            let (db, locks) = (db.clone(), locks.clone());
            async move { db.begin_locked(&locks, &[user]).await.unwrap().commit().await.unwrap() }
        });
        testkit::eventually("it waits", PATIENCE, || async { !locks.is_idle() }).await;
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
async fn a_lock_that_cannot_be_had_fails_the_transaction_and_its_connection_is_not_lost() {
    for place in need!(Place::all().await) {
        let mut config = place.config();
        config.max_connections = 1;
        let (db, locks) = (db::Db::open(&config).await.unwrap(), locks(&place).await);
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let hasty = locks.within(Duration::from_millis(100));
        for _ in 0..3 {
            let late = db.begin_locked(&hasty, &[user]).await.unwrap_err();
            assert!(matches!(late, db::Error::Lock(hierlock::Error::Timeout(_))), "{late:?}");
            assert!(late.is_passing());
        }
        held.release().await.unwrap();
        db.begin_locked(&locks, &[user]).await.unwrap().commit().await.unwrap();
        db.close().await;
    }
}

//! Transactions that wait for a lock must not slow down the others.

use std::sync::Mutex;
use std::time::Instant;

use db::Db;
use futures::FutureExt as _;
use futures::future::join_all;
use hierlock::{LockManager, Target};
use testkit::{eventually, need};

use super::locking::locks;
use super::*;

const CONNECTIONS: u32 = 8;
const NORMAL_LATENCY: Duration = Duration::from_secs(1);

async fn open(place: &Place) -> (Db, LockManager) {
    let config = Config { max_connections: CONNECTIONS, acquire_timeout: PATIENCE, ..place.config() };
    (Db::open(&config).await.unwrap(), locks(place).await)
}

async fn without_waiting<T, E: std::fmt::Debug>(what: &str, work: impl Future<Output = Result<T, E>>) -> T {
    tokio::time::timeout(NORMAL_LATENCY, work).await.unwrap_or_else(|_| panic!("{what} had to wait")).unwrap()
}

/// The waiters want the lock of the user or of one of the user's resources.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_one_user_delay_neither_other_users_nor_readiness() {
    for place in need!(Place::all().await) {
        let (db, locks) = open(&place).await;
        let held = locks.acquire(Target::user("hot").unwrap()).await.unwrap();
        let names: Vec<String> = (0..CONNECTIONS * 3).map(|number| number.to_string()).collect();
        let waiting = join_all(names.iter().map(|name| {
            let (db, locks, name) = (db.clone(), locks.clone(), name.clone());
            tokio::spawn(async move {
                let target = match name.len() {
                    1 => Target::user("hot"),
                    _ => Target::resource("hot", "a", &name),
                };
                db.begin_locked(&locks, &[target.unwrap()]).await.unwrap().commit().await.unwrap();
            })
        }));
        eventually("the transactions wait", PATIENCE, || are_waiting(&locks)).await;
        // Long enough for each waiter to have taken a connection.
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            without_waiting("readiness", db.ping()).await;
            without_waiting("a transaction", db.begin()).await.commit().await.unwrap();
            for name in &names {
                let other = Target::resource(name, "a", "r").unwrap();
                without_waiting("another user", db.begin_locked(&locks, &[other]))
                    .await
                    .commit()
                    .await
                    .unwrap();
            }
        }
        held.release().await.unwrap();
        for waited in tokio::time::timeout(PATIENCE, waiting).await.unwrap() {
            waited.unwrap();
        }
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_one_resource_do_not_delay_other_resources() {
    for place in need!(Place::all().await) {
        let (db, locks) = open(&place).await;
        let sword = Target::resource("u", "a", "sword").unwrap();
        let held = locks.acquire(sword).await.unwrap();
        let waiting = join_all((0..CONNECTIONS * 2).map(|_| {
            let (db, locks) = (db.clone(), locks.clone());
            tokio::spawn(
                async move { db.begin_locked(&locks, &[sword]).await.unwrap().commit().await.unwrap() },
            )
        }));
        eventually("the transactions wait", PATIENCE, || are_waiting(&locks)).await;
        for _ in 0..20 {
            let shield = Target::resource("u", "a", "shield").unwrap();
            without_waiting("another resource", db.begin_locked(&locks, &[shield]))
                .await
                .commit()
                .await
                .unwrap();
        }
        held.release().await.unwrap();
        for waited in tokio::time::timeout(PATIENCE, waiting).await.unwrap() {
            waited.unwrap();
        }
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_in_order_of_arrival() {
    for place in need!(Place::all().await) {
        let (db, locks) = open(&place).await;
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let served = Mutex::new(Vec::new());
        // `join_all` polls them in this order for the first time, which is when they arrive.
        let waiters = join_all((0..CONNECTIONS * 2).map(|number| {
            let (db, locks, served) = (&db, &locks, &served);
            async move {
                let tx = db.begin_locked(locks, &[user]).await.unwrap();
                served.lock().unwrap().push(number);
                tx.commit().await.unwrap();
            }
        }));
        let release = async {
            eventually("the transactions wait", PATIENCE, || are_waiting(&locks)).await;
            held.release().await.unwrap();
        };
        tokio::time::timeout(PATIENCE, async { tokio::join!(waiters, release) }).await.unwrap();
        assert_eq!(served.into_inner().unwrap(), (0..CONNECTIONS * 2).collect::<Vec<_>>());
        db.close().await;
    }
}

/// The waiter times out or is dropped, on the server or in the queue before it.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_waiter_leaves_nothing_behind() {
    for place in need!(Place::all().await) {
        let (db, locks) = open(&place).await;
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let users = [user];
        let impatient = locks.with_timeout(Duration::from_millis(200));
        let started = Instant::now();
        let timed_out = join_all((0..CONNECTIONS * 2).map(|_| db.begin_locked(&impatient, &users))).await;
        assert!(
            started.elapsed() < NORMAL_LATENCY,
            "all of them have the same deadline: {:?}",
            started.elapsed()
        );
        for error in timed_out.into_iter().map(Result::unwrap_err) {
            assert!(matches!(error, db::Error::Lock(hierlock::Error::Timeout(_))), "{error:?}");
        }
        let mut dropped: Vec<_> =
            (0..CONNECTIONS * 2).map(|_| Box::pin(db.begin_locked(&locks, &users))).collect();
        for waiter in &mut dropped {
            assert!(waiter.now_or_never().is_none());
        }
        drop(dropped);
        held.release().await.unwrap();
        without_waiting("the next transaction", db.begin_locked(&locks, &[user]))
            .await
            .commit()
            .await
            .unwrap();
        eventually("no lock or waiter is left", PATIENCE, || async { locks.is_idle() }).await;
        db.close().await;
    }
}

/// Returns whether a transaction waits: by the server's own tables, or in process by whether any lock is in use.
async fn are_waiting(locks: &LockManager) -> bool {
    match locks.lock_waits().await.unwrap() {
        Some(waits) => !waits.is_empty(),
        None => !locks.is_idle(),
    }
}

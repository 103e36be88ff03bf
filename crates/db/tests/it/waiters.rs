//! Transactions that wait for a lock, and everybody else.

use std::sync::Mutex;
use std::time::Instant;

use db::Db;
use futures::FutureExt as _;
use futures::future::join_all;
use hierlock::{Locks, Target};
use testkit::{eventually, need};

use super::locking::locks;
use super::*;

const CONNECTIONS: u32 = 8;
const USUAL: Duration = Duration::from_secs(1);

async fn opened(place: &Place) -> (Db, Locks) {
    let config = Config { max_connections: CONNECTIONS, acquire_timeout: PATIENCE, ..place.config() };
    (Db::open(&config).await.unwrap(), locks(place).await)
}

async fn in_usual_time<T, E: std::fmt::Debug>(what: &str, work: impl Future<Output = Result<T, E>>) -> T {
    tokio::time::timeout(USUAL, work).await.unwrap_or_else(|_| panic!("{what} waits")).unwrap()
}

/// A waiter for the user waits for the user's own lock, or for that of anything the user has.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_one_user_keep_neither_others_nor_readiness_waiting() {
    for place in need!(Place::all().await) {
        let (db, locks) = opened(&place).await;
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
        eventually("they wait", PATIENCE, || are_waiting(&locks)).await;
        // Longer than what it takes them to take a connection each.
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            in_usual_time("readiness", db.ping()).await;
            in_usual_time("a transaction", db.begin()).await.commit().await.unwrap();
            for name in &names {
                let other = Target::resource(name, "a", "r").unwrap();
                in_usual_time("another user", db.begin_locked(&locks, &[other]))
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

/// A resource that is held elsewhere does not keep its neighbours waiting.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_one_resource_do_not_keep_other_resources_waiting() {
    for place in need!(Place::all().await) {
        let (db, locks) = opened(&place).await;
        let sword = Target::resource("u", "a", "sword").unwrap();
        let held = locks.acquire(sword).await.unwrap();
        let waiting = join_all((0..CONNECTIONS * 2).map(|_| {
            let (db, locks) = (db.clone(), locks.clone());
            tokio::spawn(
                async move { db.begin_locked(&locks, &[sword]).await.unwrap().commit().await.unwrap() },
            )
        }));
        eventually("they wait", PATIENCE, || are_waiting(&locks)).await;
        for _ in 0..20 {
            let shield = Target::resource("u", "a", "shield").unwrap();
            in_usual_time("a neighbour", db.begin_locked(&locks, &[shield])).await.commit().await.unwrap();
        }
        held.release().await.unwrap();
        for waited in tokio::time::timeout(PATIENCE, waiting).await.unwrap() {
            waited.unwrap();
        }
        db.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_in_the_order_of_their_arrival() {
    for place in need!(Place::all().await) {
        let (db, locks) = opened(&place).await;
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let served = Mutex::new(Vec::new());
        // Polled in this order for the first time, which is when they arrive.
        let waiters = join_all((0..CONNECTIONS * 2).map(|number| {
            let (db, locks, served) = (&db, &locks, &served);
            async move {
                let tx = db.begin_locked(locks, &[user]).await.unwrap();
                served.lock().unwrap().push(number);
                tx.commit().await.unwrap();
            }
        }));
        let release = async {
            eventually("they wait", PATIENCE, || are_waiting(&locks)).await;
            held.release().await.unwrap();
        };
        tokio::time::timeout(PATIENCE, async { tokio::join!(waiters, release) }).await.unwrap();
        assert_eq!(served.into_inner().unwrap(), (0..CONNECTIONS * 2).collect::<Vec<_>>());
        db.close().await;
    }
}

/// By its deadline or by dropping it, at the server or in the line before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gives_up_leaves_nothing() {
    for place in need!(Place::all().await) {
        let (db, locks) = opened(&place).await;
        let user = Target::user("u").unwrap();
        let held = locks.acquire(user).await.unwrap();
        let users = [user];
        let hasty = locks.within(Duration::from_millis(200));
        let started = Instant::now();
        let late = join_all((0..CONNECTIONS * 2).map(|_| db.begin_locked(&hasty, &users))).await;
        assert!(started.elapsed() < USUAL, "all of them have the same deadline: {:?}", started.elapsed());
        for error in late.into_iter().map(Result::unwrap_err) {
            assert!(matches!(error, db::Error::Lock(hierlock::Error::Timeout(_))), "{error:?}");
        }
        let mut dropped: Vec<_> =
            (0..CONNECTIONS * 2).map(|_| Box::pin(db.begin_locked(&locks, &users))).collect();
        for waiter in &mut dropped {
            assert!(waiter.now_or_never().is_none());
        }
        drop(dropped);
        held.release().await.unwrap();
        in_usual_time("the next one", db.begin_locked(&locks, &[user])).await.commit().await.unwrap();
        eventually("nothing is left", PATIENCE, || async { locks.is_idle() }).await;
        db.close().await;
    }
}

/// Whether somebody waits: by the server's own tables, or in process by what cannot be had.
async fn are_waiting(locks: &Locks) -> bool {
    match locks.waits().await.unwrap() {
        Some(waits) => !waits.is_empty(),
        None => !locks.is_idle(),
    }
}

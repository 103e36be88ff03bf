//! Failures of servers and networks.

use std::time::Instant;

use futures::FutureExt as _;
use hierlock::Error;
use testkit::{FaultProxy, Flavour, eventually, need};

use super::*;

/// Starts a private server with buckets, behind a fault proxy.
async fn server_behind_proxy()
-> Result<(SqlServer, TestStore, FaultProxy, MySqlConnectOptions), testkit::Error> {
    let server = SqlServer::private().await?;
    let store = TestStore::on(&server).await;
    let proxy = FaultProxy::to(server.addr()).await;
    let TestStore::MySql(database) = &store else { panic!("a server") };
    let through = proxy.url(database.url()).parse().unwrap();
    Ok((server, store, proxy, through))
}

#[tokio::test]
async fn cut_network_loses_the_lock_and_the_server_releases_it() {
    let (_server, store, proxy, through) = need!(server_behind_proxy().await);
    let locks = LockManager::mysql(through, &options()).await.unwrap();
    let lock = locks.acquire(user("u")).await.unwrap();
    proxy.cut().await;
    assert!(matches!(lock.check().await, Err(Error::Lost)));
    store
        .locks()
        .await
        .with_timeout(Duration::from_secs(3))
        .acquire(user("u"))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let away = locks.with_timeout(Duration::from_secs(1)).acquire(user("v")).await.unwrap_err();
    assert!(matches!(away, Error::Unreachable(_)), "{away:?}");
    assert!(away.is_safe_to_retry());
    proxy.pass().await;
    locks.acquire(user("u")).await.unwrap().release().await.unwrap();
    drop(lock);
    assert_idle(&locks).await;
}

/// A cancelled check leaves no response that a later command would read.
#[tokio::test]
async fn check_can_be_cancelled() {
    let (_server, _place, proxy, through) = need!(server_behind_proxy().await);
    let locks = LockManager::mysql(through, &options()).await.unwrap();
    proxy.delay(Duration::from_millis(5)).await;
    for round in 0..4 {
        let lock = locks.acquire(account("u", "a")).await.unwrap();
        for _ in 0..round {
            assert!(lock.check().now_or_never().is_none(), "it is in flight");
        }
        lock.check().await.unwrap();
        assert!(lock.check().now_or_never().is_none());
        lock.release().await.unwrap();
        locks.acquire(user("u")).await.unwrap().release().await.unwrap();
    }
    assert_idle(&locks).await;
}

/// Bytes are dropped without a reset: both sides detect it by their timeouts.
#[tokio::test]
async fn silent_network_loses_the_lock_in_time_on_both_sides() {
    let (_server, store, proxy, through) = need!(server_behind_proxy().await);
    let quick = Options { heartbeat: Duration::from_millis(700), ..options() };
    let locks = LockManager::mysql(through, &quick).await.unwrap();
    let lock = locks.acquire(user("u")).await.unwrap();
    lock.fencing_token().await.unwrap();
    proxy.half_open().await;
    let began = Instant::now();
    tokio::time::timeout(Duration::from_secs(10), lock.lost()).await.unwrap();
    assert!(!lock.is_valid());
    // The server waits for three heartbeats, part of which has already passed.
    let next = store.locks().await.acquire(user("u")).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let token = tokio::time::timeout(Duration::from_secs(5), lock.fencing_token());
    assert!(token.await.unwrap().is_err(), "after the loss there is no token and no wait for one");
    let began = Instant::now();
    assert!(lock.release().await.is_err());
    assert!(began.elapsed() < Duration::from_secs(2), "a known loss is reported without waiting");
    next.release().await.unwrap();
    let away = locks.with_timeout(Duration::from_millis(500)).acquire(user("v")).await.unwrap_err();
    assert!(away.is_safe_to_retry(), "{away:?}");
    proxy.pass().await;
    eventually("it works again", TIMEOUT, || async {
        locks.with_timeout(Duration::from_secs(1)).acquire(user("u")).await.map(drop).is_ok()
    })
    .await;
    assert_idle(&locks).await;
}

/// The server does not notice that a waiting session's connection is gone, so the session must be killed.
#[tokio::test]
async fn cut_network_leaves_no_waiter_behind() {
    let (_server, store, proxy, through) = need!(server_behind_proxy().await);
    let patient = Options { wait_timeout: TIMEOUT * 10, ..options() };
    let (locks, ours) = (store.locks().await, LockManager::mysql(through, &patient).await.unwrap());
    let held = locks.acquire(account("u", "a")).await.unwrap();
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.acquire(account("u", "a")).await.map(drop) }
    });
    let waiters = async |count: usize| locks.lock_waits().await.unwrap().unwrap().len() == count;
    eventually("it waits", TIMEOUT, || waiters(1)).await;
    proxy.cut().await;
    let lost = waiting.await.unwrap().unwrap_err();
    assert!(matches!(lost, Error::Unreachable(_)), "{lost:?}");
    proxy.pass().await;
    eventually("no waiter is left", TIMEOUT, || waiters(0)).await;
    held.release().await.unwrap();
    assert_idle(&ours).await;
}

/// A waiter that cannot be killed ends by the server's own timeout.
#[tokio::test]
async fn unreachable_waiter_times_out_on_the_server() {
    let (_server, store, proxy, through) = need!(server_behind_proxy().await);
    let hasty = Options { wait_timeout: Duration::from_secs(1), ..options() };
    let (locks, ours) = (store.locks().await, LockManager::mysql(through, &hasty).await.unwrap());
    let held = locks.acquire(user("u")).await.unwrap();
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.acquire(user("u")).await.map(drop) }
    });
    let waiters = async |count: usize| locks.lock_waits().await.unwrap().unwrap().len() == count;
    eventually("it waits", TIMEOUT, || waiters(1)).await;
    proxy.half_open().await;
    let late = waiting.await.unwrap().unwrap_err();
    assert!(matches!(late, Error::Timeout(_)), "{late:?}");
    eventually("no waiter is left", TIMEOUT, || waiters(0)).await;
    held.release().await.unwrap();
}

/// A restarted server counts session ids from the beginning, so an old id may belong to another session.
#[tokio::test]
async fn session_with_a_reused_id_is_not_killed() {
    let mut server = need!(SqlServer::private().await);
    let store = TestStore::on(&server).await;
    let proxy = FaultProxy::to(server.addr()).await;
    let TestStore::MySql(database) = &store else { panic!("a server") };
    // An id that a restart alone does not reach.
    for _ in 0..50 {
        store.connect().await;
    }
    let locks = LockManager::mysql(proxy.url(database.url()).parse().unwrap(), &options()).await.unwrap();
    let held = locks.acquire(user("u")).await.unwrap();
    let session = held.session_id().unwrap();
    // The server reports its uptime in whole seconds.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    held.release().await.unwrap();
    proxy.half_open().await;
    assert!(!is_free(&locks, user("u")).await, "it times out and is due to be killed");
    server.kill().await.unwrap();
    server.start_again().await.unwrap();
    let mut others = Vec::new();
    let mut other = loop {
        let mut other = store.connect().await;
        let number: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut other).await.unwrap();
        assert!(number <= session, "the ids start again");
        if number == session {
            break other;
        }
        others.push(other);
    };
    proxy.pass().await;
    assert_idle(&locks).await;
    sqlx::Connection::ping(&mut other).await.unwrap();
}

#[tokio::test]
async fn locks_work_again_after_a_server_crash() {
    let mut server = need!(SqlServer::builder(Flavour::Mariadb).start().await);
    let store = TestStore::on(&server).await;
    let locks = store.locks().await;
    let lock = locks.acquire(user("u")).await.unwrap();
    server.kill().await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), lock.lost()).await.unwrap();
    assert!(matches!(lock.release().await, Err(Error::Lost)));
    let away = locks.acquire(user("u")).await.unwrap_err();
    assert!(matches!(away, Error::Unreachable(_)), "{away:?}");
    server.start_again().await.unwrap();
    locks.acquire(user("u")).await.unwrap().release().await.unwrap();
    assert_idle(&locks).await;
}

#[tokio::test]
async fn connecting_over_a_silent_network_times_out() {
    let (_server, _place, proxy, through) = need!(server_behind_proxy().await);
    proxy.half_open().await;
    let settings = options();
    let opening = LockManager::mysql(through.clone(), &settings);
    let provisioning = Provisioner::new(through.clone(), BUCKETS);
    let both = async { tokio::join!(opening, provisioning.is_complete(), hierlock::lock_waits(through)) };
    let (opened, complete, waits) = tokio::time::timeout(TIMEOUT, both).await.unwrap();
    for error in [opened.unwrap_err(), complete.unwrap_err(), waits.unwrap_err()] {
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn provisioning_fails_when_the_server_ends() {
    let mut server = need!(SqlServer::private().await);
    let store = TestStore::MySql(server.database().await);
    create_tables(&mut store.connect().await).await.unwrap();
    let slow = Provisioner::new(store.options(), 1_000_000).throttled(10_000);
    let (begun, mut began) = tokio::sync::mpsc::unbounded_channel();
    let running =
        tokio::spawn(async move { slow.run(|progress| begun.send(progress.created).unwrap()).await });
    while began.recv().await.unwrap() == 0 {}
    server.kill().await.unwrap();
    let ended = tokio::time::timeout(TIMEOUT, running).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(ended, Error::Unreachable(_)), "{ended:?}");
}

//! Servers and networks that fail.

use std::time::Instant;

use futures::FutureExt as _;
use hierlock::Error;
use testkit::{Flavour, Proxy, eventually, need};

use super::*;

/// A server of our own with buckets, and a network to it that can be broken.
async fn broken_network() -> Result<(SqlServer, Place, Proxy, MySqlConnectOptions), testkit::Error> {
    let server = SqlServer::private().await?;
    let place = Place::on(&server).await;
    let proxy = Proxy::to(server.addr()).await;
    let Place::MySql(database) = &place else { panic!("a server") };
    let through = proxy.url(database.url()).parse().unwrap();
    Ok((server, place, proxy, through))
}

#[tokio::test]
async fn a_network_that_is_cut_loses_the_lock_and_the_server_lets_go() {
    let (_server, place, proxy, through) = need!(broken_network().await);
    let locks = Locks::mysql(through, &options()).await.unwrap();
    let lock = locks.acquire(user("u")).await.unwrap();
    proxy.cut().await;
    assert!(matches!(lock.check().await, Err(Error::Lost)));
    place
        .locks()
        .await
        .within(Duration::from_secs(3))
        .acquire(user("u"))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let away = locks.within(Duration::from_secs(1)).acquire(user("v")).await.unwrap_err();
    assert!(matches!(away, Error::Unreachable(_)), "{away:?}");
    assert!(away.is_safe_to_retry());
    proxy.pass().await;
    locks.acquire(user("u")).await.unwrap().release().await.unwrap();
    drop(lock);
    assert_nothing_is_left(&locks).await;
}

/// A check that is left half-way leaves no answer behind that a later question would take for its own.
#[tokio::test]
async fn a_check_may_be_left_before_its_answer_comes() {
    let (_server, _place, proxy, through) = need!(broken_network().await);
    let locks = Locks::mysql(through, &options()).await.unwrap();
    proxy.delay(Duration::from_millis(5)).await;
    for round in 0..4 {
        let lock = locks.acquire(account("u", "a")).await.unwrap();
        for _ in 0..round {
            assert!(lock.check().now_or_never().is_none(), "it is on its way");
        }
        lock.check().await.unwrap();
        assert!(lock.check().now_or_never().is_none());
        lock.release().await.unwrap();
        locks.acquire(user("u")).await.unwrap().release().await.unwrap();
    }
    assert_nothing_is_left(&locks).await;
}

/// Bytes go nowhere, and nobody says so: both sides find out by the time that passes.
#[tokio::test]
async fn a_network_that_falls_silent_loses_the_lock_in_time_on_both_sides() {
    let (_server, place, proxy, through) = need!(broken_network().await);
    let quick = Options { heartbeat: Duration::from_millis(700), ..options() };
    let locks = Locks::mysql(through, &quick).await.unwrap();
    let lock = locks.acquire(user("u")).await.unwrap();
    lock.fencing_token().await.unwrap();
    proxy.half_open().await;
    let began = Instant::now();
    tokio::time::timeout(Duration::from_secs(10), lock.lost()).await.unwrap();
    assert!(!lock.is_valid());
    // The server waits for three heartbeats, of which it has seen some pass already.
    let next = place.locks().await.acquire(user("u")).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let token = tokio::time::timeout(Duration::from_secs(5), lock.fencing_token());
    assert!(token.await.unwrap().is_err(), "who has lost gets none, and does not wait for it");
    let told = Instant::now();
    assert!(lock.release().await.is_err());
    assert!(told.elapsed() < Duration::from_secs(2), "who knows of the loss waits for nothing");
    next.release().await.unwrap();
    let away = locks.within(Duration::from_millis(500)).acquire(user("v")).await.unwrap_err();
    assert!(away.is_safe_to_retry(), "{away:?}");
    proxy.pass().await;
    eventually("it works again", PATIENCE, || async {
        locks.within(Duration::from_secs(1)).acquire(user("u")).await.map(drop).is_ok()
    })
    .await;
    assert_nothing_is_left(&locks).await;
}

/// A server that makes a session wait does not see that its connection has gone, so this must not be left to it.
#[tokio::test]
async fn a_network_that_is_cut_leaves_no_waiter_behind() {
    let (_server, place, proxy, through) = need!(broken_network().await);
    let patient = Options { wait_timeout: PATIENCE * 10, ..options() };
    let (locks, ours) = (place.locks().await, Locks::mysql(through, &patient).await.unwrap());
    let held = locks.acquire(account("u", "a")).await.unwrap();
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.acquire(account("u", "a")).await.map(drop) }
    });
    let waiters = async |count: usize| locks.waits().await.unwrap().unwrap().len() == count;
    eventually("it waits", PATIENCE, || waiters(1)).await;
    proxy.cut().await;
    let lost = waiting.await.unwrap().unwrap_err();
    assert!(matches!(lost, Error::Unreachable(_)), "{lost:?}");
    proxy.pass().await;
    eventually("nobody waits", PATIENCE, || waiters(0)).await;
    held.release().await.unwrap();
    assert_nothing_is_left(&ours).await;
}

/// What cannot be killed either, the server gives up by itself.
#[tokio::test]
async fn a_waiter_that_nobody_can_reach_is_given_up_by_the_server() {
    let (_server, place, proxy, through) = need!(broken_network().await);
    let hasty = Options { wait_timeout: Duration::from_secs(1), ..options() };
    let (locks, ours) = (place.locks().await, Locks::mysql(through, &hasty).await.unwrap());
    let held = locks.acquire(user("u")).await.unwrap();
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.acquire(user("u")).await.map(drop) }
    });
    let waiters = async |count: usize| locks.waits().await.unwrap().unwrap().len() == count;
    eventually("it waits", PATIENCE, || waiters(1)).await;
    proxy.half_open().await;
    let late = waiting.await.unwrap().unwrap_err();
    assert!(matches!(late, Error::Timeout(_)), "{late:?}");
    eventually("nobody waits", PATIENCE, || waiters(0)).await;
    held.release().await.unwrap();
}

/// A server that is started again counts its sessions from the beginning: the numbers of old ones are those of others.
#[tokio::test]
async fn nobody_is_killed_for_having_the_number_of_a_session_that_was() {
    let mut server = need!(SqlServer::private().await);
    let place = Place::on(&server).await;
    let proxy = Proxy::to(server.addr()).await;
    let Place::MySql(database) = &place else { panic!("a server") };
    // A number that is not reached by starting alone.
    for _ in 0..50 {
        place.connect().await;
    }
    let locks = Locks::mysql(proxy.url(database.url()).parse().unwrap(), &options()).await.unwrap();
    let held = locks.acquire(user("u")).await.unwrap();
    let session = held.session_id().unwrap();
    // The server tells its age in seconds, give or take one.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    held.release().await.unwrap();
    proxy.half_open().await;
    assert!(!is_free(&locks, user("u")).await, "it gives up, and is to be killed");
    server.kill().await.unwrap();
    server.start_again().await.unwrap();
    let mut others = Vec::new();
    let mut other = loop {
        let mut other = place.connect().await;
        let number: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut other).await.unwrap();
        assert!(number <= session, "the numbers begin again");
        if number == session {
            break other;
        }
        others.push(other);
    };
    proxy.pass().await;
    assert_nothing_is_left(&locks).await;
    sqlx::Connection::ping(&mut other).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_is_got_over() {
    let mut server = need!(SqlServer::builder(Flavour::Mariadb).start().await);
    let place = Place::on(&server).await;
    let locks = place.locks().await;
    let lock = locks.acquire(user("u")).await.unwrap();
    server.kill().await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), lock.lost()).await.unwrap();
    assert!(matches!(lock.release().await, Err(Error::Lost)));
    let away = locks.acquire(user("u")).await.unwrap_err();
    assert!(matches!(away, Error::Unreachable(_)), "{away:?}");
    server.start_again().await.unwrap();
    locks.acquire(user("u")).await.unwrap().release().await.unwrap();
    assert_nothing_is_left(&locks).await;
}

#[tokio::test]
async fn a_network_that_is_silent_from_the_beginning_is_given_up() {
    let (_server, _place, proxy, through) = need!(broken_network().await);
    proxy.half_open().await;
    let settings = options();
    let opening = Locks::mysql(through.clone(), &settings);
    let provisioning = Provision::new(through.clone(), BUCKETS);
    let both = async { tokio::join!(opening, provisioning.is_complete(), hierlock::waits(through)) };
    let (opened, complete, waits) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    for error in [opened.unwrap_err(), complete.unwrap_err(), waits.unwrap_err()] {
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn provisioning_ends_when_the_server_does() {
    let mut server = need!(SqlServer::private().await);
    let place = Place::MySql(server.database().await);
    create_tables(&mut place.connect().await).await.unwrap();
    let slow = Provision::new(place.options(), 1_000_000).throttled(10_000);
    let (begun, mut began) = tokio::sync::mpsc::unbounded_channel();
    let running = tokio::spawn(async move { slow.run(|progress| begun.send(progress.made).unwrap()).await });
    while began.recv().await.unwrap() == 0 {}
    server.kill().await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(ended, Error::Unreachable(_)), "{ended:?}");
}

//! Servers that are killed and networks that go silent.

use db::{Db, on};
use futures::future::join_all;
use prometheus_client::registry::Registry;
use sqlx::Executor;
use testkit::{FaultProxy, eventually, need};

use super::*;

async fn answers(db: &Db) -> Result<(), String> {
    db.ping().await.map_err(|error| base::error::chain(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn store_reconnects_after_the_server_was_killed() {
    let mut server = need!(SqlServer::private().await);
    let database = server.database().await;
    let place = Place::Server(database);
    let db = place.open().await;
    db.migrate(&[db::MIGRATIONS]).await.unwrap();
    let before = db.deployment_id().await.unwrap();
    server.kill().await.unwrap();
    let mut config = place.config();
    config.acquire_timeout = Duration::from_millis(200);
    assert!(Db::open(&config).await.is_err());
    server.start_again().await.unwrap();
    eventually("the store answers again", PATIENCE, || answers(&db)).await;
    assert_eq!(db.deployment_id().await.unwrap(), before, "committed data is still there");
    db.close().await;
}

/// Connections that were idle while the server was down are not handed out.
#[tokio::test(flavor = "multi_thread")]
async fn connection_that_died_while_idle_is_not_handed_out() {
    let mut server = need!(SqlServer::private().await);
    let place = Place::Server(server.database().await);
    let db = place.open().await;
    let held = join_all((0..5).map(|_| db.connection())).await;
    let idle_since = tokio::time::Instant::now();
    held.into_iter().for_each(|connection| drop(connection.unwrap()));
    idle(&db, 5).await;
    server.restart().await.unwrap();
    // Connections that were idle for less than a second are not pinged.
    tokio::time::sleep_until(idle_since + Duration::from_millis(1100)).await;
    for attempt in 0..10 {
        let mut connection = db.connection().await.unwrap();
        let result = on!(connection, raw => raw.execute("SELECT 1").await.map(drop));
        assert!(result.is_ok(), "attempt {attempt}: {result:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_recovers_from_a_silent_network() {
    let server = need!(SqlServer::private().await);
    let (_database, proxy, db) = through_proxy(&server, 10, 500).await;
    db.ping().await.unwrap();
    idle(&db, 1).await;
    proxy.half_open().await;
    let started = std::time::Instant::now();
    assert!(db.ping().await.is_err());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    proxy.pass().await;
    eventually("the store answers again", PATIENCE, || answers(&db)).await;
}

/// While the network stays silent, the place in the pool must still be freed and closing must end.
#[tokio::test(flavor = "multi_thread")]
async fn pool_does_not_lose_a_connection_that_went_silent_in_use() {
    let server = need!(SqlServer::private().await);
    let (_database, proxy, db) = through_proxy(&server, 3, 300).await;
    let (mut tx, committing) = (db.begin().await.unwrap(), db.begin().await.unwrap());
    let reading = db.connection().await.unwrap();
    proxy.half_open().await;
    let started = std::time::Instant::now();
    assert!(committing.commit().await.is_err());
    let statement = async { on!(tx, raw => { raw.execute("SELECT 1").await.map(drop) }) };
    assert!(tokio::time::timeout(Duration::from_millis(300), statement).await.is_err());
    drop((tx, reading));
    connections(&db, "used", 0).await;
    db.close().await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// The statement was sent and its response is in flight, so it is unknown whether the transaction has begun.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_begin_leaves_no_open_transaction_in_the_pool() {
    let server = need!(SqlServer::private().await);
    let (_database, proxy, db) = through_proxy(&server, 1, 5000).await;
    idle(&db, 1).await;
    proxy.delay(Duration::from_millis(500)).await;
    assert!(tokio::time::timeout(Duration::from_millis(150), db.begin()).await.is_err());
    proxy.pass().await;
    let mut connection = db.connection().await.unwrap();
    const IN_TRANSACTION: &str = "SELECT CAST(@@in_transaction AS SIGNED)";
    let open: i64 = on!(connection, raw => sqlx::query_scalar(IN_TRANSACTION).fetch_one(raw).await.unwrap());
    assert_eq!(open, 0);
}

/// Opens a store behind a proxy, with this pool size and acquire timeout.
async fn through_proxy(server: &SqlServer, connections: u32, millis: u64) -> (Database, FaultProxy, Db) {
    let database = server.database().await;
    let proxy = FaultProxy::to(server.addr()).await;
    let url = DbUrl::MySql(proxy.url(database.url()).parse().unwrap());
    let acquire_timeout = Duration::from_millis(millis);
    let config = Config { max_connections: connections, acquire_timeout, ..config(url) };
    (database, proxy, Db::open(&config).await.unwrap())
}

async fn idle(db: &Db, count: u32) {
    connections(db, "idle", count).await;
}

/// Waits until `count` connections are in the state.
async fn connections(db: &Db, state: &str, count: u32) {
    let mut registry = Registry::default();
    db.register_metrics(&mut registry);
    eventually("connections change their state", PATIENCE, async || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        if text.contains(&format!("{{state=\"{state}\"}} {count}\n")) { Ok(()) } else { Err(text) }
    })
    .await;
}

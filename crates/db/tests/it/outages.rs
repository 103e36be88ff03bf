use db::{Db, on};
use futures::future::join_all;
use prometheus_client::registry::Registry;
use sqlx::Executor;
use testkit::{Proxy, eventually, need};

use super::*;

async fn answers(db: &Db) -> Result<(), String> {
    db.ping().await.map_err(|error| base::error::chain(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_comes_back_by_itself_after_the_server_was_killed() {
    let mut server = need!(SqlServer::private().await);
    let database = server.database().await;
    let place = Place::Server(database);
    let db = place.open().await;
    db.migrate(&[db::MIGRATIONS]).await.unwrap();
    let before = db.deployment().await.unwrap();
    server.kill().await.unwrap();
    let mut config = place.config();
    config.acquire_timeout = Duration::from_millis(200);
    assert!(Db::open(&config).await.is_err());
    server.start_again().await.unwrap();
    eventually("the store answers again", PATIENCE, || answers(&db)).await;
    assert_eq!(db.deployment().await.unwrap(), before, "what was committed is still there");
    db.close().await;
}

/// Connections that rested while the server was away are not handed out.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_given_a_connection_that_died_at_rest() {
    let mut server = need!(SqlServer::private().await);
    let place = Place::Server(server.database().await);
    let db = place.open().await;
    let held = join_all((0..5).map(|_| db.connection())).await;
    let rested = tokio::time::Instant::now();
    held.into_iter().for_each(|connection| drop(connection.unwrap()));
    idle(&db, 5).await;
    server.restart().await.unwrap();
    // Shorter rests are trusted.
    tokio::time::sleep_until(rested + Duration::from_millis(1100)).await;
    for attempt in 0..10 {
        let mut connection = db.connection().await.unwrap();
        let asked = on!(connection, raw => raw.execute("SELECT 1").await.map(drop));
        assert!(asked.is_ok(), "attempt {attempt}: {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_is_noticed_and_got_over() {
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

/// The network stays silent: the place in the pool must be free all the same, and closing must end.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_fell_silent_in_use_is_not_lost_to_the_pool() {
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

/// The statement was sent and its answer is on the way: whether the transaction has begun nobody knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_begin_that_is_given_up_leaves_no_open_transaction_in_the_pool() {
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

/// A store behind a proxy, with so many connections and so many milliseconds of patience.
async fn through_proxy(server: &SqlServer, connections: u32, millis: u64) -> (Database, Proxy, Db) {
    let database = server.database().await;
    let proxy = Proxy::to(server.addr()).await;
    let url = DbUrl::MySql(proxy.url(database.url()).parse().unwrap());
    let acquire_timeout = Duration::from_millis(millis);
    let config = Config { max_connections: connections, acquire_timeout, ..config(url) };
    (database, proxy, Db::open(&config).await.unwrap())
}

async fn idle(db: &Db, count: u32) {
    connections(db, "idle", count).await;
}

/// Waits until so many connections are in a state.
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

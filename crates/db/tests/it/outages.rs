use db::Db;
use testkit::{Proxy, eventually, need};

use super::*;

async fn answers(db: &Db) -> Result<(), String> {
    db.ping().await.map_err(|error| base::error::chain(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_comes_back_by_itself_after_the_server_was_killed() {
    let mut server = need!(SqlServer::private().await);
    let database = server.database().await;
    let place = Place::MySql(database);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_is_noticed_and_got_over() {
    let server = need!(SqlServer::shared().await);
    let database = server.database().await;
    let proxy = Proxy::to(server.addr()).await;
    let mut config = config(DbUrl::MySql(proxy.url(database.url()).parse().unwrap()));
    config.acquire_timeout = Duration::from_millis(500);
    let db = Db::open(&config).await.unwrap();
    db.ping().await.unwrap();
    proxy.half_open().await;
    let started = std::time::Instant::now();
    assert!(db.ping().await.is_err());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    proxy.pass().await;
    eventually("the store answers again", PATIENCE, || answers(&db)).await;
}

//! Hosts that disappear without closing their connections, and the server's idle timeout that ends their sessions.

use std::time::Instant;

use db::{Db, on};
use futures::future::join_all;
use hierlock::Target;
use sqlx::Executor;
use testkit::{FaultProxy, need};

use super::locking::locks;
use super::*;

/// The server ends a session that is idle for three times this.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(1);

async fn open_through_proxy(server: &SqlServer) -> (Place, FaultProxy, Db) {
    let place = Place::Server(server.database().await);
    let proxy = FaultProxy::to(server.addr()).await;
    let url = DbUrl::MySql(proxy.url(&place.url()).parse().unwrap());
    let config = Config { acquire_timeout: ACQUIRE_TIMEOUT, ..config(url) };
    (place, proxy, Db::open(&config).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_vanished_host_are_released_within_three_acquire_timeouts() {
    for server in need!(private_servers().await) {
        let (place, proxy, db) = open_through_proxy(&server).await;
        let (locks, user) = (locks(&place).await, Target::user("u").unwrap());
        let mut tx = db.begin_locked(&locks, &[user]).await.unwrap();
        on!(tx, raw => { raw.execute("SELECT 1").await.unwrap(); });
        proxy.half_open().await;
        let vanished = Instant::now();
        let survivor = Config { acquire_timeout: PATIENCE, ..place.config() };
        let next = Db::open(&survivor).await.unwrap().begin_locked(&locks, &[user]).await;
        assert!(
            vanished.elapsed() < ACQUIRE_TIMEOUT * 3 + Duration::from_secs(2),
            "{:?}",
            vanished.elapsed()
        );
        next.unwrap().commit().await.unwrap();
        assert!(tx.commit().await.is_err(), "the lost transaction cannot be committed later");
    }
}

/// A global limit set by an operator must not override ours: MariaDB would apply it first.
#[tokio::test(flavor = "multi_thread")]
async fn global_idle_timeouts_do_not_lengthen_ours() {
    let server = need!(SqlServer::private().await);
    let (place, proxy, db) = open_through_proxy(&server).await;
    for name in
        ["idle_transaction_timeout", "idle_readonly_transaction_timeout", "idle_write_transaction_timeout"]
    {
        let mut connection = sqlx::ConnectOptions::connect(&place.config().server().unwrap()).await.unwrap();
        connection.execute(sqlx::AssertSqlSafe(format!("SET GLOBAL {name} = 3600"))).await.unwrap();
    }
    let (locks, user) = (locks(&place).await, Target::user("u").unwrap());
    // The first connection was opened before the change, so use it up.
    let held = join_all((0..2).map(|_| db.begin())).await;
    let tx = db.begin_locked(&locks, &[user]).await.unwrap();
    proxy.half_open().await;
    let vanished = Instant::now();
    locks.acquire(user).await.unwrap().release().await.unwrap();
    assert!(vanished.elapsed() < ACQUIRE_TIMEOUT * 3 + Duration::from_secs(2), "{:?}", vanished.elapsed());
    drop((held, tx));
}

/// The server ends idle sessions, so the keep-alive pings idle connections.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_stay_open() {
    for place in need!(Place::servers().await) {
        let config = Config { acquire_timeout: Duration::from_millis(300), ..place.config() };
        let db = Db::open(&config).await.unwrap();
        let before = sessions(&db).await;
        // The server ends sessions that are idle for one second.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        assert_eq!(sessions(&db).await, before);
        db.close().await;
    }
}

/// Returns the server's connection ids of three pooled connections.
async fn sessions(db: &Db) -> Vec<u64> {
    let connections = join_all((0..3).map(|_| db.connection())).await;
    let ids = connections.into_iter().map(|connection| async move {
        let mut connection = connection.unwrap();
        on!(connection, raw => sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(raw).await.map(|id: i64| id as u64))
            .unwrap()
    });
    let mut ids = join_all(ids).await;
    ids.sort_unstable();
    ids
}

//! Demoted servers, which answer but take no writes.

use base::error::Coded;
use db::{Db, Error, on};
use futures::future::join_all;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySqlConnection};
use testkit::{eventually, need};

use super::*;

/// Creates a table and opens a store as a user without the privilege to write in spite of `read_only`.
async fn plain_user(place: &Place, max_connections: u32) -> (MySqlConnection, Db) {
    let mut root = place.config().server().unwrap().connect().await.unwrap();
    root.execute("CREATE TABLE example (id BIGINT PRIMARY KEY) ENGINE=InnoDB").await.unwrap();
    root.execute("CREATE USER app@'127.0.0.1'").await.unwrap();
    let database: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut root).await.unwrap();
    root.execute(AssertSqlSafe(format!("GRANT ALL ON `{database}`.* TO app@'127.0.0.1'"))).await.unwrap();
    let url = DbUrl::MySql(place.url().replace("root@", "app@").parse().unwrap());
    (root, Db::open(&Config { max_connections, ..config(url) }).await.unwrap())
}

async fn write(db: &Db) -> Result<(), Error> {
    let mut tx = db.begin().await?;
    on!(tx, raw => { raw.execute("INSERT INTO example VALUES (1)").await?; });
    on!(tx, raw => { raw.execute("DELETE FROM example").await?; });
    tx.commit().await
}

async fn session(db: &Db) -> i64 {
    let mut connection = db.connection().await.unwrap();
    let id = "SELECT CAST(CONNECTION_ID() AS SIGNED)";
    on!(connection, raw => sqlx::query_scalar(id).fetch_one(raw).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn demoted_server_is_not_ready_until_it_takes_writes_again() {
    for server in need!(private_servers().await) {
        let place = Place::Server(server.database().await);
        let (mut root, db) = plain_user(&place, 10).await;
        write(&db).await.unwrap();
        db.ping().await.unwrap();
        root.execute("SET GLOBAL read_only = 1").await.unwrap();
        let refused = db.ping().await.unwrap_err();
        assert!(matches!(refused, Error::ReadOnly(_)) && refused.is_transient(), "{refused:?}");
        let refused = write(&db).await.unwrap_err();
        assert!(matches!(refused, Error::ReadOnly(_)) && refused.is_transient(), "{refused:?}");
        root.execute("SET GLOBAL read_only = 0").await.unwrap();
        db.ping().await.unwrap();
        write(&db).await.unwrap();
        db.close().await;
    }
}

/// The server's name may resolve to another server by now.
#[tokio::test(flavor = "multi_thread")]
async fn connection_is_not_reused_after_a_refused_write() {
    for server in need!(private_servers().await) {
        let place = Place::Server(server.database().await);
        let (mut root, db) = plain_user(&place, 1).await;
        for write_at in ["statement", "commit", "begin"] {
            let before = session(&db).await;
            root.execute("SET GLOBAL read_only = 1").await.unwrap();
            let refused = match write_at {
                "statement" => write(&db).await.unwrap_err(),
                "commit" => {
                    let mut tx = db.begin().await.unwrap();
                    tx.insert_at_commit("INSERT INTO example (id)", [[db::Value::Integer(1)]]);
                    tx.commit().await.unwrap_err()
                }
                _ => db
                    .begin_with_insert("INSERT INTO example (id)", [[db::Value::Integer(1)]])
                    .await
                    .unwrap_err(),
            };
            assert!(matches!(refused, Error::ReadOnly(_)), "{write_at}: {refused:?}");
            eventually("another connection is used", PATIENCE, async || session(&db).await != before).await;
            root.execute("SET GLOBAL read_only = 0").await.unwrap();
        }
        db.close().await;
    }
}

async fn query_number(place: &Place, text: &'static str, parameter: Option<i64>) -> i64 {
    let mut root = place.config().server().unwrap().connect().await.unwrap();
    let query = parameter.into_iter().fold(sqlx::query_scalar(text), |query, value| query.bind(value));
    query.fetch_one(&mut root).await.unwrap()
}

/// One refusal shows that writes would be refused on all other connections too.
#[tokio::test(flavor = "multi_thread")]
async fn one_refused_write_replaces_all_connections() {
    for server in need!(private_servers().await) {
        let place = Place::Server(server.database().await);
        let (mut root, db) = plain_user(&place, 10).await;
        let held = join_all((0..5).map(|_| db.connection())).await;
        let newest = query_number(&place, "SELECT CAST(CONNECTION_ID() AS SIGNED)", None).await;
        drop(held);
        root.execute("SET GLOBAL read_only = 1").await.unwrap();
        assert!(write(&db).await.is_err());
        eventually("the old connections are gone", PATIENCE, async || {
            drop(join_all((0..5).map(|_| db.connection())).await);
            const OLD: &str =
                "SELECT COUNT(*) FROM information_schema.processlist WHERE USER = 'app' AND ID <= ?";
            let old = query_number(&place, OLD, Some(newest)).await;
            // The health check's connection stays.
            if old == 1 { Ok(()) } else { Err(format!("{old} are left")) }
        })
        .await;
        db.close().await;
    }
}

/// The server's session default can be set to read-only, which affects the sessions that are opened from then on.
#[tokio::test(flavor = "multi_thread")]
async fn read_only_session_default_is_detected() {
    for server in need!(private_servers().await) {
        let place = Place::Server(server.database().await);
        let (mut root, _) = plain_user(&place, 10).await;
        let name = match server.flavour() {
            Flavour::Mariadb => "tx_read_only",
            Flavour::Mysql => "transaction_read_only",
        };
        root.execute(AssertSqlSafe(format!("SET GLOBAL {name} = 1"))).await.unwrap();
        let db = place.open().await;
        assert!(matches!(db.ping().await, Err(Error::ReadOnly(_))));
        assert!(matches!(write(&db).await, Err(Error::ReadOnly(_))));
        root.execute(AssertSqlSafe(format!("SET GLOBAL {name} = 0"))).await.unwrap();
        db.ping().await.unwrap();
        eventually("writes succeed again", PATIENCE, async || {
            write(&db).await.map_err(|error| error.to_string())
        })
        .await;
        db.close().await;
    }
}

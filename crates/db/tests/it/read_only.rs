//! Servers that are demoted: they answer, and take no writes.

use base::error::Coded;
use db::{Db, Error, on};
use futures::future::join_all;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySqlConnection};
use testkit::{eventually, need};

use super::*;

/// A table, and a store whose user does not overrule `read_only`.
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
async fn a_server_that_is_demoted_in_place_is_not_ready_until_it_takes_writes_again() {
    for server in need!(private_servers().await) {
        let place = Place::Server(server.database().await);
        let (mut root, db) = plain_user(&place, 10).await;
        write(&db).await.unwrap();
        db.ping().await.unwrap();
        root.execute("SET GLOBAL read_only = 1").await.unwrap();
        let refused = db.ping().await.unwrap_err();
        assert!(matches!(refused, Error::ReadOnly(_)) && refused.is_passing(), "{refused:?}");
        let refused = write(&db).await.unwrap_err();
        assert!(matches!(refused, Error::ReadOnly(_)) && refused.is_passing(), "{refused:?}");
        root.execute("SET GLOBAL read_only = 0").await.unwrap();
        db.ping().await.unwrap();
        write(&db).await.unwrap();
        db.close().await;
    }
}

/// Its name may lead to another server by now.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_refused_a_write_is_not_used_again() {
    for server in need!(private_servers().await) {
        let place = Place::Server(server.database().await);
        let (mut root, db) = plain_user(&place, 1).await;
        for statement in ["in the middle", "at the commit", "at the beginning"] {
            let before = session(&db).await;
            root.execute("SET GLOBAL read_only = 1").await.unwrap();
            let refused = match statement {
                "in the middle" => write(&db).await.unwrap_err(),
                "at the commit" => {
                    let mut tx = db.begin().await.unwrap();
                    tx.insert_at_commit("INSERT INTO example (id)", [[db::Value::Integer(1)]]);
                    tx.commit().await.unwrap_err()
                }
                _ => db.begin_with("INSERT INTO example (id)", [[db::Value::Integer(1)]]).await.unwrap_err(),
            };
            assert!(matches!(refused, Error::ReadOnly(_)), "{statement}: {refused:?}");
            eventually("another connection is used", PATIENCE, async || session(&db).await != before).await;
            root.execute("SET GLOBAL read_only = 0").await.unwrap();
        }
        db.close().await;
    }
}

async fn count(place: &Place, question: &'static str, parameter: Option<i64>) -> i64 {
    let mut root = place.config().server().unwrap().connect().await.unwrap();
    let asking = parameter.into_iter().fold(sqlx::query_scalar(question), |asking, value| asking.bind(value));
    asking.fetch_one(&mut root).await.unwrap()
}

/// One refusal is enough to know what all the others would be told.
#[tokio::test(flavor = "multi_thread")]
async fn one_refused_write_replaces_all_connections() {
    for server in need!(private_servers().await) {
        let place = Place::Server(server.database().await);
        let (mut root, db) = plain_user(&place, 10).await;
        let held = join_all((0..5).map(|_| db.connection())).await;
        let newest = count(&place, "SELECT CAST(CONNECTION_ID() AS SIGNED)", None).await;
        drop(held);
        root.execute("SET GLOBAL read_only = 1").await.unwrap();
        assert!(write(&db).await.is_err());
        eventually("the old connections are gone", PATIENCE, async || {
            drop(join_all((0..5).map(|_| db.connection())).await);
            const OLD: &str =
                "SELECT COUNT(*) FROM information_schema.processlist WHERE USER = 'app' AND ID <= ?";
            let old = count(&place, OLD, Some(newest)).await;
            // That of readiness, which looks for itself.
            if old == 1 { Ok(()) } else { Err(format!("{old} are left")) }
        })
        .await;
        db.close().await;
    }
}

/// The default of sessions can be changed on the server, which demotes the ones that are opened from then on.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_begin_read_only_are_noticed() {
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
        eventually("it writes again", PATIENCE, async || write(&db).await.map_err(|error| error.to_string()))
            .await;
        db.close().await;
    }
}

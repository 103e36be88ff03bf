//! External servers: tests use them and leave them clean.

use async_nats::jetstream;
use futures::TryStreamExt;
use redis::AsyncCommands;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use testkit::{Nats, OutputStream, Redis, SqlServer, need};

use crate::DEADLINE;
use crate::roles::{again, role};

/// Uses namespaces on the external servers and prints their names.
async fn guest() {
    let sql = SqlServer::shared().await.unwrap();
    let redis = Redis::shared().await.unwrap();
    let nats = Nats::shared().await.unwrap();
    assert_eq!((sql.pid(), redis.pid(), nats.pid()), (None, None, None));
    assert_eq!(SqlServer::mariadb().await.unwrap().pid(), None);
    assert!(SqlServer::all_shared().await.unwrap().iter().any(|server| server.pid().is_none()));

    let database = sql.database().await;
    let mut connection = MySqlConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE t (n INT)").execute(&mut connection).await.unwrap();
    println!("used {}", database.name());

    let namespace = redis.namespace();
    let mut connection = namespace.connect().await;
    for n in 0..500 {
        connection.set::<_, _, ()>(namespace.key(&n.to_string()), n).await.unwrap();
    }
    println!("used {}", namespace.prefix());

    let namespace = nats.namespace();
    let config = jetstream::stream::Config {
        name: namespace.stream("events"),
        subjects: vec![namespace.subject(">")],
        ..Default::default()
    };
    jetstream::new(namespace.connect().await).create_stream(config).await.unwrap();
    println!("used {}", namespace.prefix());
}

async fn databases(sql: &SqlServer) -> Vec<String> {
    let mut connection = MySqlConnection::connect(&sql.url()).await.unwrap();
    let rows =
        sqlx::raw_sql(AssertSqlSafe("SHOW DATABASES LIKE 'testkit%'")).fetch_all(&mut connection).await;
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn external_servers_are_used_and_left_clean() {
    if role().is_some() {
        return guest().await;
    }
    let sql = need!(SqlServer::private().await);
    let redis = need!(Redis::private().await);
    let nats = need!(Nats::private().await);
    // Data of others on the servers must stay.
    let kept = (sql.database().await, redis.namespace(), nats.namespace());
    let mut in_redis = kept.1.connect().await;
    in_redis.set::<_, _, ()>(kept.1.key("k"), "v").await.unwrap();

    for dsn in [sql.url(), format!("root@tcp({})/mysql?parseTime=true", sql.addr())] {
        let guest = again!("guest")
            .env("MYSQL_DSN", dsn)
            .env("REDIS_URL", redis.url())
            .env("NATS_URL", nats.addr().to_string())
            .start()
            .unwrap();
        let status = guest.wait(DEADLINE).await;
        assert!(status.success(), "{}{}", guest.text(OutputStream::Stdout), guest.text(OutputStream::Stderr));
        assert_eq!(guest.lines().iter().filter(|line| line.text.contains("used testkit_")).count(), 3);
    }

    assert_eq!(databases(&sql).await, [kept.0.name()]);
    assert_eq!(in_redis.keys::<_, Vec<String>>("*").await.unwrap(), [kept.1.key("k")]);
    let streams: Vec<String> =
        jetstream::new(kept.2.connect().await).stream_names().try_collect().await.unwrap();
    assert!(streams.is_empty(), "{streams:?}");
}

#[tokio::test]
async fn unreachable_external_server_is_an_error_and_not_a_skip() {
    if role().is_some() {
        println!("error {}", Redis::shared().await.unwrap_err());
        println!("error {}", SqlServer::all_shared().await.unwrap_err());
        println!("error {}", Nats::shared().await.unwrap_err());
        return;
    }
    let unreachable = "127.0.0.1:1";
    let guest = again!("guest")
        .env("MYSQL_DSN", format!("u:secret@tcp({unreachable})/"))
        .env("REDIS_URL", format!("redis://:secret@{unreachable}"))
        .env("NATS_URL", format!("nats://u:secret@{unreachable}"))
        .start()
        .unwrap();
    assert!(guest.wait(DEADLINE).await.success());
    let output = guest.text(OutputStream::Stdout);
    for variable in ["MYSQL_DSN", "REDIS_URL", "NATS_URL"] {
        assert!(output.contains(&format!("error {variable}: the server at {unreachable}: ")), "{output}");
    }
    assert!(!output.contains("secret"), "{output}");
}

//! Servers that already run: they are used, and left as they were found.

use async_nats::jetstream;
use futures::TryStreamExt;
use redis::AsyncCommands;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use testkit::{Nats, Redis, SqlServer, Stream, need};

use crate::DEADLINE;
use crate::roles::{again, role};

/// Uses rooms on the servers that it has been given, and prints their names.
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

    let keyspace = redis.keyspace();
    let mut connection = keyspace.connect().await;
    for n in 0..500 {
        connection.set::<_, _, ()>(keyspace.key(&n.to_string()), n).await.unwrap();
    }
    println!("used {}", keyspace.prefix());

    let streams = nats.streams();
    let config = jetstream::stream::Config {
        name: streams.stream("events"),
        subjects: vec![streams.subject(">")],
        ..Default::default()
    };
    jetstream::new(streams.connect().await).create_stream(config).await.unwrap();
    println!("used {}", streams.prefix());
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
    // What is there already, and of somebody else, stays.
    let kept = (sql.database().await, redis.keyspace(), nats.streams());
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
        assert!(status.success(), "{}{}", guest.text(Stream::Stdout), guest.text(Stream::Stderr));
        assert_eq!(guest.lines().iter().filter(|line| line.text.contains("used testkit_")).count(), 3);
    }

    assert_eq!(databases(&sql).await, [kept.0.name()]);
    assert_eq!(in_redis.keys::<_, Vec<String>>("*").await.unwrap(), [kept.1.key("k")]);
    let streams: Vec<String> =
        jetstream::new(kept.2.connect().await).stream_names().try_collect().await.unwrap();
    assert!(streams.is_empty(), "{streams:?}");
}

#[tokio::test]
async fn an_external_server_that_is_not_there_is_an_error_and_not_a_skip() {
    if role().is_some() {
        println!("said {}", Redis::shared().await.unwrap_err());
        println!("said {}", SqlServer::all_shared().await.unwrap_err());
        println!("said {}", Nats::shared().await.unwrap_err());
        return;
    }
    let nobody = "127.0.0.1:1";
    let guest = again!("guest")
        .env("MYSQL_DSN", format!("u:secret@tcp({nobody})/"))
        .env("REDIS_URL", format!("redis://:secret@{nobody}"))
        .env("NATS_URL", format!("nats://u:secret@{nobody}"))
        .start()
        .unwrap();
    assert!(guest.wait(DEADLINE).await.success());
    let said = guest.text(Stream::Stdout);
    for variable in ["MYSQL_DSN", "REDIS_URL", "NATS_URL"] {
        assert!(said.contains(&format!("said {variable}: the server at {nobody}: ")), "{said}");
    }
    assert!(!said.contains("secret"), "{said}");
}

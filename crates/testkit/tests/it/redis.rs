//! Redis: rooms and faults.

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use testkit::{Keyspace, Redis, eventually, need};
use tokio::time::timeout;

use crate::{DEADLINE, SILENCE};

async fn fetch(room: &Keyspace, key: &str) -> Option<String> {
    room.connect().await.get(room.key(key)).await.unwrap()
}

async fn ping(connection: &mut MultiplexedConnection) -> redis::RedisResult<String> {
    redis::cmd("PING").query_async(connection).await
}

#[tokio::test]
async fn rooms_do_not_see_each_other() {
    let redis = need!(Redis::shared().await);
    let (one, two) = (redis.keyspace(), redis.keyspace());
    assert_ne!(one.prefix(), two.prefix());
    one.connect().await.set::<_, _, ()>(one.key("k"), "v").await.unwrap();
    assert_eq!(fetch(&one, "k").await.as_deref(), Some("v"));
    assert_eq!(fetch(&two, "k").await, None);
}

/// Tests have a runtime each; the second must not need anything of the first.
#[test]
fn the_shared_server_outlives_the_runtime_that_started_it() {
    let mut pids = Vec::new();
    for _ in 0..2 {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let redis = need!(runtime.block_on(Redis::shared()));
        let room = redis.keyspace();
        runtime.block_on(async { ping(&mut room.connect().await).await }).unwrap();
        pids.push(redis.pid());
    }
    assert_eq!(pids[0], pids[1]);
}

#[tokio::test]
async fn a_kill_keeps_what_was_logged() {
    let mut redis = need!(Redis::builder().appendonly().start().await);
    let room = redis.keyspace();
    let mut connection = room.connect().await;
    for n in 0..100 {
        connection.set::<_, _, ()>(room.key("k"), n).await.unwrap();
    }
    let address = redis.addr();
    redis.kill().await.unwrap();
    assert_eq!(redis.pid(), None);
    assert!(ping(&mut connection).await.is_err());

    redis.start_again().await.unwrap();
    assert_eq!(redis.addr(), address);
    assert_eq!(fetch(&room, "k").await.as_deref(), Some("99"));
}

#[tokio::test]
async fn without_a_log_a_restart_forgets() {
    let mut redis = need!(Redis::private().await);
    let room = redis.keyspace();
    room.connect().await.set::<_, _, ()>(room.key("k"), "v").await.unwrap();
    redis.restart().await.unwrap();
    assert_eq!(fetch(&room, "k").await, None);
}

#[tokio::test]
async fn the_log_of_a_durable_one_is_on_the_disk() {
    let mut redis = need!(Redis::builder().durable().start().await);
    let room = redis.keyspace();
    room.connect().await.set::<_, _, ()>(room.key("k"), "v").await.unwrap();
    assert!(redis.folders().iter().any(|folder| folder.starts_with(testkit::target())));
    redis.stop().await.unwrap();
    redis.start_again().await.unwrap();
    assert_eq!(fetch(&room, "k").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn a_paused_one_is_silent_until_it_goes_on() {
    let mut redis = need!(Redis::private().await);
    let room = redis.keyspace();
    let mut connection = room.connect().await;
    redis.pause().await.unwrap();
    assert!(timeout(SILENCE, ping(&mut connection)).await.is_err());
    redis.resume().unwrap();
    eventually("an answer", DEADLINE, || {
        let mut connection = connection.clone();
        async move { ping(&mut connection).await }
    })
    .await;
    // Again: the second time must not be answered by the news of the first.
    redis.pause().await.unwrap();
    assert!(timeout(SILENCE, ping(&mut connection)).await.is_err());
    // And a paused server can be stopped.
    redis.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_start_says_why() {
    let error = match Redis::builder().arg("--no-such-option").arg("1").start().await {
        Err(error @ testkit::Error::Missing { .. }) => return need!(Err(error)),
        other => other.unwrap_err().to_string(),
    };
    assert!(error.starts_with("redis-server: did not start (exit status: 1)"), "{error}");
    assert!(error.contains("no-such-option"), "{error}");
}

#[tokio::test]
async fn dropping_it_removes_it() {
    let redis = need!(Redis::private().await);
    let (url, folders) = (redis.url(), redis.folders().iter().map(|f| f.to_path_buf()).collect::<Vec<_>>());
    assert!(folders.iter().all(|folder| folder.exists()));
    drop(redis);
    assert!(folders.iter().all(|folder| !folder.exists()));
    let client = redis::Client::open(url).unwrap();
    assert!(client.get_multiplexed_async_connection().await.is_err());
}

#[tokio::test]
async fn what_is_not_running_is_not_paused_nor_started_twice() {
    let mut redis = need!(Redis::private().await);
    let error = redis.start_again().await.unwrap_err().to_string();
    assert_eq!(error, "redis-server: is running already");
    redis.kill().await.unwrap();
    let error = redis.pause().await.unwrap_err().to_string();
    assert_eq!(error, "redis-server: is not running, so there is nothing to pause");
    redis.kill().await.unwrap();
    redis.stop().await.unwrap();
}

//! Redis: namespaces and faults.

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use testkit::{Redis, RedisNamespace, eventually, need};
use tokio::time::timeout;

use crate::{DEADLINE, SILENCE};

async fn fetch(namespace: &RedisNamespace, key: &str) -> Option<String> {
    namespace.connect().await.get(namespace.key(key)).await.unwrap()
}

async fn ping(connection: &mut MultiplexedConnection) -> redis::RedisResult<String> {
    redis::cmd("PING").query_async(connection).await
}

#[tokio::test]
async fn namespaces_do_not_see_each_other() {
    let redis = need!(Redis::shared().await);
    let (one, two) = (redis.namespace(), redis.namespace());
    assert_ne!(one.prefix(), two.prefix());
    one.connect().await.set::<_, _, ()>(one.key("k"), "v").await.unwrap();
    assert_eq!(fetch(&one, "k").await.as_deref(), Some("v"));
    assert_eq!(fetch(&two, "k").await, None);
}

/// Each test has its own runtime, so the server must not depend on the first one.
#[test]
fn shared_server_outlives_the_runtime_that_started_it() {
    let mut pids = Vec::new();
    for _ in 0..2 {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let redis = need!(runtime.block_on(Redis::shared()));
        let namespace = redis.namespace();
        runtime.block_on(async { ping(&mut namespace.connect().await).await }).unwrap();
        pids.push(redis.pid());
    }
    assert_eq!(pids[0], pids[1]);
}

#[tokio::test]
async fn logged_changes_survive_a_kill() {
    let mut redis = need!(Redis::builder().appendonly().start().await);
    let namespace = redis.namespace();
    let mut connection = namespace.connect().await;
    for n in 0..100 {
        connection.set::<_, _, ()>(namespace.key("k"), n).await.unwrap();
    }
    let address = redis.addr();
    redis.kill().await.unwrap();
    assert_eq!(redis.pid(), None);
    assert!(ping(&mut connection).await.is_err());

    redis.start_again().await.unwrap();
    assert_eq!(redis.addr(), address);
    assert_eq!(fetch(&namespace, "k").await.as_deref(), Some("99"));
}

#[tokio::test]
async fn restart_without_a_log_loses_the_data() {
    let mut redis = need!(Redis::private().await);
    let namespace = redis.namespace();
    namespace.connect().await.set::<_, _, ()>(namespace.key("k"), "v").await.unwrap();
    redis.restart().await.unwrap();
    assert_eq!(fetch(&namespace, "k").await, None);
}

#[tokio::test]
async fn durable_server_has_its_log_on_disk() {
    let mut redis = need!(Redis::builder().durable().start().await);
    let namespace = redis.namespace();
    namespace.connect().await.set::<_, _, ()>(namespace.key("k"), "v").await.unwrap();
    assert!(redis.folders().iter().any(|folder| folder.starts_with(testkit::target_dir())));
    redis.stop().await.unwrap();
    redis.start_again().await.unwrap();
    assert_eq!(fetch(&namespace, "k").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn paused_server_does_not_answer_until_resumed() {
    let mut redis = need!(Redis::private().await);
    let namespace = redis.namespace();
    let mut connection = namespace.connect().await;
    redis.pause().await.unwrap();
    assert!(timeout(SILENCE, ping(&mut connection)).await.is_err());
    redis.resume().unwrap();
    eventually("an answer", DEADLINE, || {
        let mut connection = connection.clone();
        async move { ping(&mut connection).await }
    })
    .await;
    // The second pause must not return on the notification of the first.
    redis.pause().await.unwrap();
    assert!(timeout(SILENCE, ping(&mut connection)).await.is_err());
    // A paused server can be stopped.
    redis.stop().await.unwrap();
}

#[tokio::test]
async fn failed_start_reports_the_cause() {
    let error = match Redis::builder().arg("--no-such-option").arg("1").start().await {
        Err(error @ testkit::Error::Missing { .. }) => return need!(Err(error)),
        other => other.unwrap_err().to_string(),
    };
    assert!(error.starts_with("redis-server: did not start (exit status: 1)"), "{error}");
    assert!(error.contains("no-such-option"), "{error}");
}

#[tokio::test]
async fn dropping_a_server_removes_it() {
    let redis = need!(Redis::private().await);
    let (url, folders) = (redis.url(), redis.folders().iter().map(|f| f.to_path_buf()).collect::<Vec<_>>());
    assert!(folders.iter().all(|folder| folder.exists()));
    drop(redis);
    assert!(folders.iter().all(|folder| !folder.exists()));
    let client = redis::Client::open(url).unwrap();
    assert!(client.get_multiplexed_async_connection().await.is_err());
}

#[tokio::test]
async fn stopped_server_cannot_be_paused_and_running_server_cannot_be_started() {
    let mut redis = need!(Redis::private().await);
    let error = redis.start_again().await.unwrap_err().to_string();
    assert_eq!(error, "redis-server: is running already");
    redis.kill().await.unwrap();
    let error = redis.pause().await.unwrap_err().to_string();
    assert_eq!(error, "redis-server: is not running, so there is nothing to pause");
    redis.kill().await.unwrap();
    redis.stop().await.unwrap();
}

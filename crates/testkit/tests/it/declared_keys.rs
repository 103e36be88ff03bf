//! The proxy that lets scripts access only the keys that they declare.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script};
use testkit::{DeclaredKeysProxy, Redis, need};

async fn proxy(redis: &Redis) -> (DeclaredKeysProxy, MultiplexedConnection) {
    let proxy = DeclaredKeysProxy::start(redis, "??").await;
    let client = redis::Client::open(proxy.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    (proxy, connection)
}

async fn run(connection: &mut MultiplexedConnection, text: &str, keys: &[&str]) -> RedisResult<()> {
    Script::new(text).key(keys).arg("{a}other").invoke_async(connection).await
}

#[tokio::test]
async fn undeclared_key_is_refused_and_reported() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    run(&mut connection, "redis.call('SET', KEYS[1], 1)", &["{a}*one"]).await.unwrap();
    proxy.assert_no_undeclared_keys();
    let error = run(&mut connection, "redis.call('SET', ARGV[1], 1)", &["{a}*one"]).await.unwrap_err();
    assert!(error.to_string().contains("key"), "{error}");
    assert_eq!(proxy.undeclared_keys(), ["{a}other"]);
}

#[tokio::test]
async fn refusal_that_the_script_ignores_is_reported() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    run(&mut connection, "redis.pcall('GET', ARGV[1])", &["{a}one"]).await.unwrap();
    assert_eq!(proxy.undeclared_keys(), ["{a}other"]);
}

#[tokio::test]
async fn stem_allows_only_its_learned_ids() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    let text = "-- KEYS[2] stem of ids.\nredis.call('GET', KEYS[2] .. '12')";
    run(&mut connection, text, &["{a}one", "{a}id:"]).await.unwrap();
    proxy.assert_no_undeclared_keys();
    run(&mut connection, &text.replace("12", "123"), &["{a}one", "{a}id:"]).await.unwrap_err();
    run(&mut connection, &text.replace("stem of ids", "ids"), &["{a}one", "{a}id:"]).await.unwrap_err();
    assert_eq!(proxy.undeclared_keys(), ["{a}id:12", "{a}id:123"]);
}

#[tokio::test]
async fn other_commands_access_every_key_even_after_a_script() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    run(&mut connection, "redis.call('DEL', KEYS[1])", &["{a}one"]).await.unwrap();
    redis::cmd("SET").arg("{b}two").arg(1).exec_async(&mut connection).await.unwrap();
    proxy.assert_no_undeclared_keys();
}

#[tokio::test]
async fn cluster_mode_refuses_keys_of_several_slots() {
    let (_proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    let error = redis::cmd("MGET").arg("{a}one").arg("{b}one").exec_async(&mut connection).await.unwrap_err();
    assert_eq!(error.code(), Some("CROSSSLOT"), "{error}");
}

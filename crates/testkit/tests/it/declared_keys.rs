//! A proxy that lets scripts reach the keys that they declare and no others.

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script};
use testkit::{DeclaredKeys, Redis, need};

async fn proxy(redis: &Redis) -> (DeclaredKeys, MultiplexedConnection) {
    let proxy = DeclaredKeys::of(redis, "??").await;
    let client = redis::Client::open(proxy.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    (proxy, connection)
}

async fn run(connection: &mut MultiplexedConnection, text: &str, keys: &[&str]) -> RedisResult<()> {
    Script::new(text).key(keys).arg("{a}other").invoke_async(connection).await
}

#[tokio::test]
async fn a_key_that_is_not_declared_is_refused_and_reported() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    run(&mut connection, "redis.call('SET', KEYS[1], 1)", &["{a}*one"]).await.unwrap();
    proxy.assert_none_undeclared();
    let error = run(&mut connection, "redis.call('SET', ARGV[1], 1)", &["{a}*one"]).await.unwrap_err();
    assert!(error.to_string().contains("key"), "{error}");
    assert_eq!(proxy.undeclared(), ["{a}other"]);
}

#[tokio::test]
async fn a_refusal_that_the_script_ignores_is_reported_too() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    run(&mut connection, "redis.pcall('GET', ARGV[1])", &["{a}one"]).await.unwrap();
    assert_eq!(proxy.undeclared(), ["{a}other"]);
}

#[tokio::test]
async fn a_stem_stands_for_its_learned_ids_and_nothing_else() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    let text = "-- KEYS[2] stem of ids.\nredis.call('GET', KEYS[2] .. '12')";
    run(&mut connection, text, &["{a}one", "{a}id:"]).await.unwrap();
    proxy.assert_none_undeclared();
    run(&mut connection, &text.replace("12", "123"), &["{a}one", "{a}id:"]).await.unwrap_err();
    run(&mut connection, &text.replace("stem of ids", "ids"), &["{a}one", "{a}id:"]).await.unwrap_err();
    assert_eq!(proxy.undeclared(), ["{a}id:12", "{a}id:123"]);
}

#[tokio::test]
async fn other_commands_reach_every_key_also_after_a_script() {
    let (proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    run(&mut connection, "redis.call('DEL', KEYS[1])", &["{a}one"]).await.unwrap();
    redis::cmd("SET").arg("{b}two").arg(1).exec_async(&mut connection).await.unwrap();
    proxy.assert_none_undeclared();
}

#[tokio::test]
async fn a_server_in_cluster_mode_refuses_keys_of_several_slots() {
    let (_proxy, mut connection) = proxy(need!(Redis::shared_cluster().await)).await;
    let error = redis::cmd("MGET").arg("{a}one").arg("{b}one").exec_async(&mut connection).await.unwrap_err();
    assert_eq!(error.code(), Some("CROSSSLOT"), "{error}");
}

//! The store of short-lived state on a real Redis.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::time::Duration;

use base::Clock;
use base::error::Coded;
use base::finding::{Finding, Verdict};
use config::{Setting, Value};
use redis_store::{Config, Error, RedisStore, RedisUrl, Script, Trial};
use testkit::{FaultProxy, Redis, eventually, need};

const PATIENCE: Duration = Duration::from_secs(20);

fn config(url: &str) -> Config {
    Config {
        url: RedisUrl::parse(&Value::Text(url.to_owned())).unwrap(),
        timeout: Duration::from_millis(500),
    }
}

async fn answers(redis_store: &RedisStore) -> Result<(), String> {
    redis_store.ping().await.map_err(|error| base::error::chain(&error))
}

fn failures(findings: &[Finding]) -> Vec<&str> {
    findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Failure)
        .map(|finding| finding.what.as_str())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn store_reconnects_after_the_server_was_killed() {
    let mut redis = need!(Redis::private().await);
    let redis_store = RedisStore::open(&config(&redis.url())).await.unwrap();
    redis.kill().await.unwrap();
    let error = eventually("the outage is noticed", PATIENCE, async || redis_store.ping().await.err()).await;
    assert!(matches!(error, Error::Unreachable(_)) && error.is_transient(), "{error:?}");
    redis.start_again().await.unwrap();
    eventually("the store answers again", PATIENCE, || answers(&redis_store)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_reconnects_after_a_silent_network() {
    let redis = need!(Redis::private().await);
    let proxy = FaultProxy::to(redis.addr()).await;
    let redis_store = RedisStore::open(&config(&proxy.url(&redis.url()))).await.unwrap();
    proxy.half_open().await;
    let started = std::time::Instant::now();
    let error = redis_store.ping().await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    proxy.pass().await;
    eventually("the store answers again", PATIENCE, || answers(&redis_store)).await;
}

#[tokio::test]
async fn rejected_credentials_are_distinguished_from_an_unreachable_server() {
    let redis = need!(Redis::private().await);
    let mut admin = redis.namespace().connect().await;
    let lock = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("right").to_owned();
    lock.query_async::<()>(&mut admin).await.unwrap();
    let port = redis.addr().port();
    let open = async |user: &str, port: u16| {
        RedisStore::open(&config(&format!("redis://{user}127.0.0.1:{port}"))).await
    };
    assert!(open(":right@", port).await.is_ok());
    for wrong in ["", ":wrong@"] {
        let error = open(wrong, port).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)) && !error.is_transient(), "{error:?}");
    }
    let absent = open("", 1).await.unwrap_err();
    assert!(matches!(absent, Error::Unreachable(_)), "{absent:?}");
}

#[tokio::test]
async fn doctor_finds_settings_that_lose_data() {
    let durable = need!(Redis::builder().durable().start().await);
    let findings = redis_store::examine(&config(&durable.url()), &[], &Clock::system()).await;
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:#?}");

    let evicting =
        Redis::builder().arg("--maxmemory").arg("50mb").arg("--maxmemory-policy").arg("allkeys-lru");
    let evicting = need!(evicting.start().await);
    let findings = redis_store::examine(&config(&evicting.url()), &[], &Clock::system()).await;
    assert_eq!(failures(&findings), ["evicts keys when memory is short (maxmemory-policy allkeys-lru)"]);
    assert!(findings.iter().any(|finding| finding.what.contains("loses recent data")), "{findings:#?}");

    let findings = redis_store::examine(&config("redis://127.0.0.1:1"), &[], &Clock::system()).await;
    assert_eq!(failures(&findings).len(), 1, "{findings:#?}");
    let embedded = redis_store::examine(&config("memory:"), &[], &Clock::system()).await;
    assert_eq!(failures(&embedded), [] as [&str; 0]);
}

static GOOD: Script = Script::new(&["return redis.call('SET', KEYS[1], ARGV[1])"]);
static BAD: Script = Script::new(&["return redis.call('NOSUCHCOMMAND', KEYS[1])"]);

#[tokio::test]
async fn rejected_script_is_reported_with_the_servers_message() {
    let redis = need!(Redis::private().await);
    let store = RedisStore::open(&config(&redis.url())).await.unwrap();
    let good = Trial { script: &GOOD, name: "test/good.lua", keys: &["a"], args: &["1"] };
    let bad = Trial { script: &BAD, name: "test/bad.lua", keys: &["b"], args: &[] };
    store.require_fit(&[good]).await.unwrap();
    let rejected = store.require_fit(&[good, bad]).await.unwrap_err();
    assert!(matches!(rejected, Error::Unfit(_)) && !rejected.is_transient(), "{rejected:?}");
    let message = rejected.to_string();
    assert!(message.contains("rejects the script test/bad.lua") && message.contains("Unknown"), "{message}");
    let mut connection = redis.namespace().connect().await;
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn unreachable_server_during_a_trial_is_transient() {
    let mut redis = need!(Redis::private().await);
    let store = RedisStore::open(&config(&redis.url())).await.unwrap();
    redis.kill().await.unwrap();
    let good = Trial { script: &GOOD, name: "test/good.lua", keys: &["a"], args: &["1"] };
    let error = store.require_fit(&[good]).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

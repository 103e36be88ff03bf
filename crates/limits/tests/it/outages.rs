//! Limits in Redis: several processes, expiry of buckets, and outages.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use testkit::{FaultProxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, TestProcess, run_load};

/// The longest that a request may wait for an unreachable server, on a busy machine.
const MAX_WAIT: Duration = Duration::from_millis(1_500);

/// The timeout of a decision in tests with an outage.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_limit() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let (one, other) = (setup.open().await, setup.open().await);
    let mut allowed = 0;
    for at in 0..40 {
        let process = if at % 2 == 0 { &one } else { &other };
        allowed += u32::from(process.take("k", "1/h burst 10").await.allowed);
    }
    assert_eq!(allowed, 10);
    let load = run_load(&[&one, &other], "r", "50/s burst 10", Duration::from_secs(1)).await;
    assert!(load.allowed <= load.max && load.allowed > 10, "{load:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_expire_when_they_are_full() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let process = setup.open().await;
    let mut raw = setup.namespace().connect().await;
    let key = setup.namespace().key("limit:one:k");
    process.take("k", "1/s burst 10").await;
    let lives: i64 = raw.pttl(&key).await.unwrap();
    assert!((1..=1_000).contains(&lives), "{lives}");
    for _ in 0..4 {
        process.take("k", "1/s burst 10").await;
    }
    let lives: i64 = raw.pttl(&key).await.unwrap();
    assert!((3_000..=5_000).contains(&lives), "{lives}");
    let full_at: String = raw.get(&key).await.unwrap();
    assert!(full_at.bytes().all(|byte| byte.is_ascii_digit()), "{full_at}");
    process.take("short", "20/s").await;
    let short = setup.namespace().key("limit:one:short");
    eventually("the bucket has expired", PATIENCE, || {
        let (mut raw, short) = (raw.clone(), short.clone());
        async move { raw.exists::<_, bool>(short).await.map(|exists| (!exists).then_some(())).ok().flatten() }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clock_that_was_set_back_does_not_block_requests() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let process = setup.open().await;
    let mut raw = setup.namespace().connect().await;
    // Written by a server whose clock was years ahead.
    raw.set::<_, _, ()>(setup.namespace().key("limit:one:k"), "9000000000000000").await.unwrap();
    let wait = process.take("k", "20/s burst 5").await.retry_after().expect("a refusal");
    assert!(wait <= Duration::from_millis(50), "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(process.take("k", "20/s burst 5").await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_lost_its_data_starts_from_full_buckets() {
    let redis = need!(Redis::private().await);
    let setup = Setup::redis(&redis);
    let process = setup.open().await;
    assert!(process.take("k", "1/h").await.allowed);
    assert!(!process.take("k", "1/h").await.allowed);
    let mut raw = setup.namespace().connect().await;
    redis::cmd("FLUSHALL").exec_async(&mut raw).await.unwrap();
    redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut raw).await.unwrap();
    let decision = process.take("k", "1/h").await;
    assert!(decision.allowed && decision.shared, "the script is loaded again: {decision:?}");
    assert!(!process.take("k", "1/h").await.allowed);
}

/// Asserts that this process decides on its own, with the same rate and without long waits.
async fn assert_local(process: &TestProcess) {
    let started = Instant::now();
    let (mut allowed, mut slowest, counted) =
        (0, Duration::ZERO, process.metric("playhouse_limits_local_total"));
    for _ in 0..50 {
        let sent = Instant::now();
        let decision = process.take("k", "1/h burst 3").await;
        slowest = slowest.max(sent.elapsed());
        assert!(!decision.shared);
        allowed += u32::from(decision.allowed);
    }
    assert_eq!(allowed, 3, "this process starts from a full bucket");
    assert!(slowest < MAX_WAIT, "{slowest:?}");
    // Only one request per second waits.
    assert!(started.elapsed() < 2 * MAX_WAIT, "{:?}", started.elapsed());
    assert_eq!(process.metric("playhouse_limits_local_total"), counted + 50);
    assert_eq!(process.metric("playhouse_limits_away"), 1);
}

async fn until_shared(process: &TestProcess) {
    eventually("Redis decides again", PATIENCE, || async { process.take("probe", "1000/s").await.shared })
        .await;
    assert_eq!(process.metric("playhouse_limits_away"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn process_decides_on_its_own_until_redis_is_back() {
    let mut redis = need!(Redis::private().await);
    let setup = Setup::redis(&redis);
    let process = setup.open_at(Some(redis.url()), SHORT_TIMEOUT).await;
    assert!(process.take("k", "1/h burst 3").await.shared);
    redis.kill().await.unwrap();
    assert_local(&process).await;
    redis.start_again().await.unwrap();
    until_shared(&process).await;
    // Redis does not know the local decisions, and it has lost its own.
    assert_eq!(process.take("k", "1/h burst 3").await.states[0].remaining, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_network_does_not_delay_requests() {
    let redis = need!(Redis::shared().await);
    let setup = Setup::redis(redis);
    let proxy = FaultProxy::to(redis.addr()).await;
    let process = setup.open_at(Some(proxy.url(&redis.url())), SHORT_TIMEOUT).await;
    assert!(process.take("k", "1/h burst 3").await.shared);
    proxy.half_open().await;
    assert_local(&process).await;
    proxy.pass().await;
    until_shared(&process).await;
    assert_eq!(process.take("k", "1/h burst 3").await.states[0].remaining, 1, "Redis still has the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_wait_once_for_a_hanging_server() {
    let mut redis = need!(Redis::private().await);
    let process = Setup::redis(&redis).open_at(Some(redis.url()), SHORT_TIMEOUT).await;
    assert!(process.take("k", "1/h burst 3").await.shared);
    redis.pause().await.unwrap();
    let started = Instant::now();
    let decisions = futures::future::join_all((0..200).map(|_| process.take("k", "1/h burst 3"))).await;
    assert!(started.elapsed() < MAX_WAIT, "{:?}", started.elapsed());
    assert_eq!(decisions.iter().filter(|decision| decision.allowed).count(), 3);
    assert!(decisions.iter().all(|decision| !decision.shared));
    redis.resume().unwrap();
    until_shared(&process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_server_counts_as_unreachable() {
    let redis = need!(Redis::private().await);
    let setup = Setup::redis(&redis);
    let process = setup.open_at(Some(redis.url()), SHORT_TIMEOUT).await;
    let mut raw = setup.namespace().connect().await;
    let mut replica_of = async |host: &str, port: &str| {
        redis::cmd("REPLICAOF").arg(host).arg(port).exec_async(&mut raw).await.unwrap();
    };
    replica_of("127.0.0.1", "1").await;
    assert_local(&process).await;
    replica_of("NO", "ONE").await;
    until_shared(&process).await;
}

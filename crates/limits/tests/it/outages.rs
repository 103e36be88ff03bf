//! What Redis adds: several processes, buckets that end by themselves, and a server that is away.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use testkit::{Proxy, Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, World, rush};

/// What a request may be kept waiting by a server that is away, on a machine that is busy.
const BOUNDED: Duration = Duration::from_millis(1_500);

/// What the server has for a decision where it is going to be away.
const SHORT: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_limit() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let (one, other) = (setup.open().await, setup.open().await);
    let mut allowed = 0;
    for at in 0..40 {
        let world = if at % 2 == 0 { &one } else { &other };
        allowed += u32::from(world.take("k", "1/h burst 10").await.allowed);
    }
    assert_eq!(allowed, 10);
    let rush = rush(&[&one, &other], "r", "50/s burst 10", Duration::from_secs(1)).await;
    assert!(rush.allowed <= rush.most && rush.allowed > 10, "{rush:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_end_when_they_are_full_again() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let world = setup.open().await;
    let mut raw = setup.keyspace().connect().await;
    let key = setup.keyspace().key("limit:one:k");
    world.take("k", "1/s burst 10").await;
    let lives: i64 = raw.pttl(&key).await.unwrap();
    assert!((1..=1_000).contains(&lives), "{lives}");
    for _ in 0..4 {
        world.take("k", "1/s burst 10").await;
    }
    let lives: i64 = raw.pttl(&key).await.unwrap();
    assert!((3_000..=5_000).contains(&lives), "{lives}");
    let full_at: String = raw.get(&key).await.unwrap();
    assert!(full_at.bytes().all(|byte| byte.is_ascii_digit()), "{full_at}");
    world.take("short", "20/s").await;
    let short = setup.keyspace().key("limit:one:short");
    eventually("the bucket is gone", PATIENCE, || {
        let (mut raw, short) = (raw.clone(), short.clone());
        async move { raw.exists::<_, bool>(short).await.map(|there| (!there).then_some(())).ok().flatten() }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_locks_nobody_out() {
    let setup = Setup::redis(need!(Redis::shared().await));
    let world = setup.open().await;
    let mut raw = setup.keyspace().connect().await;
    // As another server wrote it whose clock was years ahead.
    raw.set::<_, _, ()>(setup.keyspace().key("limit:one:k"), "9000000000000000").await.unwrap();
    let wait = world.take("k", "20/s burst 5").await.retry_after().expect("a refusal");
    assert!(wait <= Duration::from_millis(50), "{wait:?}");
    tokio::time::sleep(wait).await;
    assert!(world.take("k", "20/s burst 5").await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loses_everything_starts_from_full_buckets() {
    let redis = need!(Redis::private().await);
    let setup = Setup::redis(&redis);
    let world = setup.open().await;
    assert!(world.take("k", "1/h").await.allowed);
    assert!(!world.take("k", "1/h").await.allowed);
    let mut raw = setup.keyspace().connect().await;
    redis::cmd("FLUSHALL").exec_async(&mut raw).await.unwrap();
    redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut raw).await.unwrap();
    let verdict = world.take("k", "1/h").await;
    assert!(verdict.allowed && verdict.shared, "the script is loaded again: {verdict:?}");
    assert!(!world.take("k", "1/h").await.allowed);
}

/// Limits are local, strict and quick.
async fn assert_local(world: &World) {
    let started = Instant::now();
    let (mut allowed, mut slowest, counted) =
        (0, Duration::ZERO, world.metric("playhouse_limits_local_total"));
    for _ in 0..50 {
        let asked = Instant::now();
        let verdict = world.take("k", "1/h burst 3").await;
        slowest = slowest.max(asked.elapsed());
        assert!(!verdict.shared);
        allowed += u32::from(verdict.allowed);
    }
    assert_eq!(allowed, 3, "this process alone, from a full bucket");
    assert!(slowest < BOUNDED, "{slowest:?}");
    // All but one a second do not wait at all.
    assert!(started.elapsed() < 2 * BOUNDED, "{:?}", started.elapsed());
    assert_eq!(world.metric("playhouse_limits_local_total"), counted + 50);
    assert_eq!(world.metric("playhouse_limits_away"), 1);
}

async fn until_shared(world: &World) {
    eventually("limits are shared again", PATIENCE, || async { world.take("probe", "1000/s").await.shared })
        .await;
    assert_eq!(world.metric("playhouse_limits_away"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_each_process_limits_alone_until_it_is_back() {
    let mut redis = need!(Redis::private().await);
    let setup = Setup::redis(&redis);
    let world = setup.open_at(Some(redis.url()), SHORT).await;
    assert!(world.take("k", "1/h burst 3").await.shared);
    redis.kill().await.unwrap();
    assert_local(&world).await;
    redis.start_again().await.unwrap();
    until_shared(&world).await;
    // What was decided alone is not known to Redis, which has lost the rest.
    assert_eq!(world.take("k", "1/h burst 3").await.states[0].remaining, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_keeps_nobody_waiting() {
    let redis = need!(Redis::shared().await);
    let setup = Setup::redis(redis);
    let proxy = Proxy::to(redis.addr()).await;
    let world = setup.open_at(Some(proxy.url(&redis.url())), SHORT).await;
    assert!(world.take("k", "1/h burst 3").await.shared);
    proxy.half_open().await;
    assert_local(&world).await;
    proxy.pass().await;
    until_shared(&world).await;
    assert_eq!(world.take("k", "1/h burst 3").await.states[0].remaining, 1, "Redis remembers the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_wait_together_for_a_server_that_hangs() {
    let mut redis = need!(Redis::private().await);
    let world = Setup::redis(&redis).open_at(Some(redis.url()), SHORT).await;
    assert!(world.take("k", "1/h burst 3").await.shared);
    redis.pause().await.unwrap();
    let started = Instant::now();
    let verdicts = futures::future::join_all((0..200).map(|_| world.take("k", "1/h burst 3"))).await;
    assert!(started.elapsed() < BOUNDED, "{:?}", started.elapsed());
    assert_eq!(verdicts.iter().filter(|verdict| verdict.allowed).count(), 3);
    assert!(verdicts.iter().all(|verdict| !verdict.shared));
    redis.resume().unwrap();
    until_shared(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_to_write_is_as_good_as_away() {
    let redis = need!(Redis::private().await);
    let setup = Setup::redis(&redis);
    let world = setup.open_at(Some(redis.url()), SHORT).await;
    let mut raw = setup.keyspace().connect().await;
    let mut replica_of = async |host: &str, port: &str| {
        redis::cmd("REPLICAOF").arg(host).arg(port).exec_async(&mut raw).await.unwrap();
    };
    replica_of("127.0.0.1", "1").await;
    assert_local(&world).await;
    replica_of("NO", "ONE").await;
    until_shared(&world).await;
}

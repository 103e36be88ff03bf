//! Stores that are emptied, unreachable or silent.

use std::time::Duration;

use base::Code;
use base::error::Coded;
use drops::model::WithoutRedis;
use drops::{Line, PlayerStatus, Position, Room, RoomMetrics};
use prometheus_client::registry::Registry;
use redis_store::{Redis as RedisConnection, RedisStore};
use testkit::{FaultProxy, Flavour, Redis, SqlServer, TestDatabase, eventually, need};

use crate::{LineBackend, PATIENCE, Process, line_at, number, terms, user};

/// Opens a drop with eight waiting players and a line in a private Redis.
async fn drop_with_eight_waiting(
    redis: &Redis,
    without_redis: WithoutRedis,
) -> (TestDatabase, Process, drops::DropId) {
    let place = TestDatabase::sqlite().unwrap();
    let process = Process::open(&place.url(), line_at(&redis.url(), "room:").await).await;
    let mut terms = terms(2, 100);
    terms.without_redis = without_redis;
    let drop = process.open_drop(terms).await.id;
    for player in 1..=8 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    (place, process, drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn emptied_redis_loses_no_player() {
    let redis = need!(Redis::private().await);
    let (_place, process, drop) = drop_with_eight_waiting(&redis, WithoutRedis::Continue).await;
    assert_eq!(process.cycle(drop).await, [1, 2]);
    let mut connection = redis.namespace().connect().await;
    redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    assert_eq!(process.cycle(drop).await, [3, 4], "admissions continue");
    assert_eq!(process.room.reconcile().await.unwrap().rebuilt, 1);
    assert_eq!(process.in_line(drop).await, [5, 6, 7, 8]);
    // A position query before the next reconciliation fills the line.
    redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    let PlayerStatus::Waiting(waiting) = process.room.status(drop, user(7)).await.unwrap() else {
        panic!("does not wait")
    };
    assert_eq!(waiting.position, Some(Position { ahead: 2, waiting: 4 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_redis_loses_no_player() {
    let mut redis = need!(Redis::private().await);
    let (_place, process, drop) = drop_with_eight_waiting(&redis, WithoutRedis::Continue).await;
    redis.kill().await.unwrap();
    assert_eq!(process.cycle(drop).await, [1, 2], "admissions continue from SQL");
    process.join(drop, 9).await.unwrap();
    process.room.leave(drop, user(5)).await.unwrap();
    assert!(matches!(process.room.status(drop, user(3)).await.unwrap(), PlayerStatus::Waiting(_)));
    let error = process.room.reconcile().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    redis.start_again().await.unwrap();
    let report = eventually("the line", PATIENCE, async || process.room.reconcile().await).await;
    assert_eq!(report.rebuilt, 1);
    assert_eq!(process.in_line(drop).await, [3, 4, 6, 7, 8, 9], "in order");
    assert_eq!(process.cycle(drop).await, [3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_that_pauses_without_redis_waits_for_the_line() {
    let mut redis = need!(Redis::private().await);
    let (_place, process, drop) = drop_with_eight_waiting(&redis, WithoutRedis::Pause).await;
    assert_eq!(process.cycle(drop).await, [1, 2]);
    redis.kill().await.unwrap();
    process.expire_admissions(drop).await;
    process.end_period(drop).await;
    let cycle = process.room.cycle(drop).await.unwrap().unwrap();
    assert_eq!((cycle.admitted.len(), cycle.expired), (0, 2), "admissions still expire");
    redis.start_again().await.unwrap();
    eventually("Redis", PATIENCE, async || process.line.len(drop).await).await;
    assert_eq!(process.cycle(drop).await, [0_u128; 0], "the line is empty");
    process.room.reconcile().await.unwrap();
    assert_eq!(process.cycle(drop).await, [3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_sql_fails_requests_and_keeps_places() {
    let mut server = need!(SqlServer::builder(Flavour::Mariadb).durable().start().await);
    let database = server.database().await;
    let line = LineBackend::Redis(need!(Redis::shared().await).namespace()).open().await;
    let process = Process::open_within(database.url(), line, Duration::from_secs(2)).await;
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=4 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    server.kill().await.unwrap();
    for error in [
        process.join(drop, 5).await.unwrap_err(),
        process.room.leave(drop, user(1)).await.unwrap_err(),
        process.room.tick().await.unwrap_err(),
        process.room.reconcile().await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    }
    assert_eq!(process.in_line(drop).await, [1, 2, 3, 4], "the line is untouched");
    server.start_again().await.unwrap();
    let joined = eventually("SQL", PATIENCE, async || process.join(drop, 5).await).await;
    assert_eq!(joined.number, 5);
    assert_eq!(process.waiting(drop).await, [1, 2, 3, 4, 5]);
    assert_eq!(process.cycle(drop).await, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_redis_delays_no_player() {
    /// Longer than the test may take: an operation that waits for Redis fails it.
    const TIMEOUT: Duration = Duration::from_secs(30);
    let redis = need!(Redis::shared().await);
    let keys = redis.namespace();
    let proxy = FaultProxy::to(redis.addr()).await;
    let connection = RedisConnection::open(&proxy.url(keys.url()), TIMEOUT).await.unwrap();
    let place = TestDatabase::sqlite().unwrap();
    let line = Line::new(&RedisStore::Redis(connection), keys.prefix());
    let process = Process::open(&place.url(), line).await;
    let drop = process.open_drop(terms(2, 100)).await.id;
    process.join(drop, 1).await.unwrap();
    process.room.reconcile().await.unwrap();
    proxy.half_open().await;
    let began = std::time::Instant::now();
    for player in 2..=20 {
        process.join(drop, player).await.unwrap();
    }
    process.room.leave(drop, user(20)).await.unwrap();
    let joined = began.elapsed();
    assert!(joined < TIMEOUT / 3, "joins waited for Redis: {joined:?}");
    process.end_period(drop).await;
    assert_eq!(process.room.tick().await.unwrap().admitted, 2, "admissions continue");
    assert!(matches!(process.room.status(drop, user(1)).await.unwrap(), PlayerStatus::Entered(_)));
    let all = began.elapsed();
    assert!(all < TIMEOUT / 2, "a cycle or a position waited for Redis: {all:?}");
    assert_eq!(process.waiting(drop).await, (3..=19).collect::<Vec<_>>(), "no player is lost");
    proxy.pass().await;
    // The old connection may still wait for its responses.
    let line = line_at(keys.url(), keys.prefix()).await;
    let other = Room::new(process.drops.clone(), line.clone(), RoomMetrics::new(&mut Registry::default()));
    let repaired = async || {
        other.reconcile().await.unwrap();
        let members = line.first(drop, 100).await.unwrap();
        members.iter().map(|member| number(member.user)).eq(3..=19)
    };
    eventually("the line", PATIENCE, repaired).await;
}

//! The guarantees of both line adapters, and repairs of the line.

use std::time::Duration;

use base::id::Uuid;
use drops::line::{FillLeaseLost, Position, PositionLookup};
use drops::model::{Lane, LineMember, Phase, Place};
use drops::{DropId, EndMode, Line};
use redis_store::{HashTags, Redis as RedisConnection, RedisStore};
use testkit::{DeclaredKeysProxy, Redis, need};

use crate::{LineBackend, Process, on_all_backends, terms, user};

const LEASE: Duration = Duration::from_secs(10);

on_all_backends!(
    lost_line_is_rebuilt_in_order,
    differences_are_repaired_and_counted,
    player_missing_from_the_line_is_admitted_in_turn,
    line_of_an_ended_drop_is_removed,
);

fn line_member(value: u64, player: u128) -> LineMember {
    LineMember { place: Place::new(Lane::new(0).unwrap(), Phase::Numbered, value), user: user(player) }
}

async fn lines() -> Result<Vec<Line>, testkit::Error> {
    let redis = LineBackend::Redis(Redis::shared().await?.namespace());
    Ok(vec![LineBackend::Memory.open().await, redis.open().await])
}

#[tokio::test(flavor = "multi_thread")]
async fn line_keeps_its_order() {
    for line in need!(lines().await) {
        check_line(&line).await;
    }
}

async fn check_line(line: &Line) {
    let drop = DropId::generate();
    assert_eq!(line.position(drop, user(1)).await.unwrap(), PositionLookup::LineNotFilled);
    let filling = line.begin_filling(drop, LEASE).await.unwrap().unwrap();
    line.fill(drop, filling, &[line_member(5, 1), line_member(3, 2)], LEASE).await.unwrap().unwrap();
    assert_eq!(
        line.position(drop, user(1)).await.unwrap(),
        PositionLookup::LineNotFilled,
        "not completely filled"
    );
    let epoch = line.finish_filling(drop, filling).await.unwrap().unwrap();
    assert_eq!(line.epoch(drop).await.unwrap(), Some(epoch));
    line.add(drop, &[line_member(4, 9), line_member(4, 3), line_member((1 << 48) - 1, 4)]).await.unwrap();
    let order = [
        line_member(3, 2),
        line_member(4, 3),
        line_member(4, 9),
        line_member(5, 1),
        line_member((1 << 48) - 1, 4),
    ];
    assert_eq!(line.first(drop, 10).await.unwrap(), order, "equal places by user id");
    for after in 0..order.len() {
        assert_eq!(line.after(drop, Some(order[after]), 10).await.unwrap(), order[after + 1..]);
    }
    assert_eq!(
        line.position(drop, user(9)).await.unwrap(),
        PositionLookup::Found(Position { ahead: 2, waiting: 5 })
    );
    assert_eq!(line.position(drop, user(77)).await.unwrap(), PositionLookup::NotInLine);
    // A player has one place.
    line.add(drop, &[line_member(9, 2)]).await.unwrap();
    assert_eq!(line.first(drop, 2).await.unwrap(), [line_member(4, 3), line_member(4, 9)]);
    assert_eq!(
        line.remove(drop, &[line_member(3, 2)]).await.unwrap(),
        0,
        "the player has another place by now"
    );
    assert_eq!(line.remove(drop, &[line_member(9, 2), line_member(4, 3)]).await.unwrap(), 2);
    assert_eq!(line.len(drop).await.unwrap(), 3);
    line.clear(drop).await.unwrap();
    assert_eq!((line.len(drop).await.unwrap(), line.epoch(drop).await.unwrap()), (0, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_fill_at_a_time() {
    for line in need!(lines().await) {
        let drop = DropId::generate();
        let short = Duration::from_millis(1);
        let slow = line.begin_filling(drop, short).await.unwrap().unwrap();
        let begun = async || line.begin_filling(drop, LEASE).await.unwrap();
        let next = testkit::eventually("the lease ends", crate::PATIENCE, begun).await;
        assert_eq!(line.begin_filling(drop, LEASE).await.unwrap(), None);
        let late = line.fill(drop, slow, &[line_member(1, 1)], LEASE).await.unwrap();
        assert_eq!((late, line.len(drop).await.unwrap()), (Err(FillLeaseLost), 0));
        assert_eq!(line.finish_filling(drop, slow).await.unwrap(), Err(FillLeaseLost));
        line.fill(drop, next, &[line_member(2, 2)], LEASE).await.unwrap().unwrap();
        line.finish_filling(drop, next).await.unwrap().unwrap();
        assert_eq!(line.first(drop, 9).await.unwrap(), [line_member(2, 2)]);
    }
}

async fn lost_line_is_rebuilt_in_order(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=8 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    process.line.clear(drop).await.unwrap();
    // Admissions and joins continue.
    assert_eq!(process.cycle(drop).await, [1, 2]);
    process.join(drop, 9).await.unwrap();
    assert_eq!(process.line.epoch(drop).await.unwrap(), None);
    let report = process.room.reconcile().await.unwrap();
    assert_eq!(report.rebuilt, 1);
    assert_eq!(process.in_line(drop).await, [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(process.room.rebuild(drop).await.unwrap(), Some(7));
    assert_eq!(process.in_line(drop).await, [3, 4, 5, 6, 7, 8, 9]);
}

async fn differences_are_repaired_and_counted(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=6 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    let members = process.line.first(drop, 10).await.unwrap();
    process.line.remove(drop, &members[1..3]).await.unwrap();
    process.line.add(drop, &[line_member(77, 1_000)]).await.unwrap();
    process.line.add(drop, &[LineMember { place: line_member(99, 0).place, user: user(6) }]).await.unwrap();
    let found = process.room.reconcile().await.unwrap();
    assert_eq!((found.missing, found.stale, found.moved, found.rebuilt), (2, 1, 1, 0));
    assert_eq!(process.line.first(drop, 10).await.unwrap(), members);
    let found = process.room.reconcile().await.unwrap();
    assert_eq!((found.missing, found.stale, found.moved, found.rebuilt), (0, 0, 0, 0));
}

async fn player_missing_from_the_line_is_admitted_in_turn(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=4 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    let members = process.line.first(drop, 10).await.unwrap();
    process.line.remove(drop, &members[1..4]).await.unwrap();
    assert_eq!(process.cycle(drop).await, [1, 2]);
    // Reading the status puts the player back at their place.
    process.room.status(drop, user(3)).await.unwrap();
    assert_eq!(process.in_line(drop).await, [3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_touch_only_their_declared_keys() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = DeclaredKeysProxy::start(redis, "").await;
    let connection = RedisConnection::open(&keys.url(), Duration::from_secs(5)).await.unwrap();
    let store = RedisStore::Redis(connection.with_hash_tags(HashTags::On));
    check_line(&Line::new(&store, &format!("{}:", Uuid::now_v7()))).await;
    keys.assert_no_undeclared_keys();
    keys.assert_all_scripts_run(std::path::Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/line/redis/scripts"
    )));
}

async fn line_of_an_ended_drop_is_removed(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    process.join(drop, 1).await.unwrap();
    process.room.reconcile().await.unwrap();
    process.drops.cancel(drop, EndMode::Forced).await.unwrap();
    // The line was not removed for a long time.
    process.execute("UPDATE drops SET closed_at = 1 WHERE drop_id = ?", drop).await;
    process.room.reconcile().await.unwrap();
    assert_eq!((process.line.len(drop).await.unwrap(), process.line.epoch(drop).await.unwrap()), (0, None));
    // A rebuild by an operator does not bring it back.
    assert_eq!(process.room.rebuild(drop).await.unwrap(), Some(0));
    assert_eq!(process.line.epoch(drop).await.unwrap(), None);
}

//! What both lines promise, and how they are repaired.

use std::time::Duration;

use base::id::Uuid;
use drops::line::{FillingLost, Position};
use drops::model::{Lane, Phase, Place, Spot};
use drops::{DropId, Ending, Line};
use redis_store::{HashTags, Redis as RedisConnection, RedisStore};
use testkit::{DeclaredKeys, Redis, need};

use crate::{LinePlace, Process, on_all_stages, terms, user};

const LEASE: Duration = Duration::from_secs(10);

on_all_stages!(
    a_lost_line_is_rebuilt_in_order,
    differences_are_mended_and_counted,
    a_player_missing_from_the_line_is_admitted_in_turn,
    the_line_of_a_drop_that_is_over_goes_however_late,
);

fn spot(value: u64, player: u128) -> Spot {
    Spot { place: Place::new(Lane::new(0).unwrap(), Phase::Numbered, value), user: user(player) }
}

async fn lines() -> Result<Vec<Line>, testkit::Error> {
    let redis = LinePlace::Redis(Redis::shared().await?.keyspace());
    Ok(vec![LinePlace::Memory.open().await, redis.open().await])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_keeps_its_order() {
    for line in need!(lines().await) {
        keeps_its_order(&line).await;
    }
}

async fn keeps_its_order(line: &Line) {
    let drop = DropId::generate();
    assert_eq!(line.position(drop, user(1)).await.unwrap(), Position::Unknown);
    let filling = line.begin_filling(drop, LEASE).await.unwrap().unwrap();
    line.fill(drop, filling, &[spot(5, 1), spot(3, 2)], LEASE).await.unwrap().unwrap();
    assert_eq!(line.position(drop, user(1)).await.unwrap(), Position::Unknown, "not filled to the end");
    let epoch = line.finish_filling(drop, filling).await.unwrap().unwrap();
    assert_eq!(line.epoch(drop).await.unwrap(), Some(epoch));
    line.add(drop, &[spot(4, 9), spot(4, 3), spot((1 << 48) - 1, 4)]).await.unwrap();
    let order = [spot(3, 2), spot(4, 3), spot(4, 9), spot(5, 1), spot((1 << 48) - 1, 4)];
    assert_eq!(line.first(drop, 10).await.unwrap(), order, "equal places by user id");
    for after in 0..order.len() {
        assert_eq!(line.after(drop, Some(order[after]), 10).await.unwrap(), order[after + 1..]);
    }
    assert_eq!(line.position(drop, user(9)).await.unwrap(), Position::Waiting { ahead: 2, waiting: 5 });
    assert_eq!(line.position(drop, user(77)).await.unwrap(), Position::Absent);
    // A player has one place.
    line.add(drop, &[spot(9, 2)]).await.unwrap();
    assert_eq!(line.first(drop, 2).await.unwrap(), [spot(4, 3), spot(4, 9)]);
    assert_eq!(line.remove(drop, &[spot(3, 2)]).await.unwrap(), 0, "the player has another place by now");
    assert_eq!(line.remove(drop, &[spot(9, 2), spot(4, 3)]).await.unwrap(), 2);
    assert_eq!(line.len(drop).await.unwrap(), 3);
    line.clear(drop).await.unwrap();
    assert_eq!((line.len(drop).await.unwrap(), line.epoch(drop).await.unwrap()), (0, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_filling_at_a_time() {
    for line in need!(lines().await) {
        let drop = DropId::generate();
        let short = Duration::from_millis(1);
        let slow = line.begin_filling(drop, short).await.unwrap().unwrap();
        let begun = async || line.begin_filling(drop, LEASE).await.unwrap();
        let next = testkit::eventually("the lease ends", crate::PATIENCE, begun).await;
        assert_eq!(line.begin_filling(drop, LEASE).await.unwrap(), None);
        let late = line.fill(drop, slow, &[spot(1, 1)], LEASE).await.unwrap();
        assert_eq!((late, line.len(drop).await.unwrap()), (Err(FillingLost), 0));
        assert_eq!(line.finish_filling(drop, slow).await.unwrap(), Err(FillingLost));
        line.fill(drop, next, &[spot(2, 2)], LEASE).await.unwrap().unwrap();
        line.finish_filling(drop, next).await.unwrap().unwrap();
        assert_eq!(line.first(drop, 9).await.unwrap(), [spot(2, 2)]);
    }
}

async fn a_lost_line_is_rebuilt_in_order(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=8 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    process.line.clear(drop).await.unwrap();
    // Admissions go on, and so do joins.
    assert_eq!(process.cycle(drop).await, [1, 2]);
    process.join(drop, 9).await.unwrap();
    assert_eq!(process.line.epoch(drop).await.unwrap(), None);
    let reconciled = process.room.reconcile().await.unwrap();
    assert_eq!(reconciled.rebuilt, 1);
    assert_eq!(process.in_line(drop).await, [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(process.room.rebuild(drop).await.unwrap(), Some(7));
    assert_eq!(process.in_line(drop).await, [3, 4, 5, 6, 7, 8, 9]);
}

async fn differences_are_mended_and_counted(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=6 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    let spots = process.line.first(drop, 10).await.unwrap();
    process.line.remove(drop, &spots[1..3]).await.unwrap();
    process.line.add(drop, &[spot(77, 1_000)]).await.unwrap();
    process.line.add(drop, &[Spot { place: spot(99, 0).place, user: user(6) }]).await.unwrap();
    let found = process.room.reconcile().await.unwrap();
    assert_eq!((found.missing, found.stale, found.moved, found.rebuilt), (2, 1, 1, 0));
    assert_eq!(process.line.first(drop, 10).await.unwrap(), spots);
    let found = process.room.reconcile().await.unwrap();
    assert_eq!((found.missing, found.stale, found.moved, found.rebuilt), (0, 0, 0, 0));
}

async fn a_player_missing_from_the_line_is_admitted_in_turn(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=4 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    let spots = process.line.first(drop, 10).await.unwrap();
    process.line.remove(drop, &spots[1..4]).await.unwrap();
    assert_eq!(process.cycle(drop).await, [1, 2]);
    // Asking for the position puts the player back where they were.
    process.room.standing(drop, user(3)).await.unwrap();
    assert_eq!(process.in_line(drop).await, [3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_script_touches_only_the_keys_that_it_declares() {
    let redis = need!(Redis::shared_cluster().await);
    let keys = DeclaredKeys::of(redis, "").await;
    let connection = RedisConnection::open(&keys.url(), Duration::from_secs(5)).await.unwrap();
    let store = RedisStore::Redis(connection.with_hash_tags(HashTags::On));
    keeps_its_order(&Line::new(&store, &format!("{}:", Uuid::now_v7()))).await;
    keys.assert_none_undeclared();
    keys.assert_all_run(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/line/redis/scripts")));
}

async fn the_line_of_a_drop_that_is_over_goes_however_late(process: &Process) {
    let drop = process.open_drop(terms(2, 100)).await.id;
    process.join(drop, 1).await.unwrap();
    process.room.reconcile().await.unwrap();
    process.drops.cancel(drop, Ending::Forced).await.unwrap();
    // Nobody could remove it for a long time.
    process.execute("UPDATE drops SET closed_at = 1 WHERE drop_id = ?", drop).await;
    process.room.reconcile().await.unwrap();
    assert_eq!((process.line.len(drop).await.unwrap(), process.line.epoch(drop).await.unwrap()), (0, None));
    // An operator who asks for it does not bring it back.
    assert_eq!(process.room.rebuild(drop).await.unwrap(), Some(0));
    assert_eq!(process.line.epoch(drop).await.unwrap(), None);
}

//! The control experiment: why players are read first and removed after the commit.

use drops::DropId;
use drops::model::EntryState;
use runtime::fault;
use sqlx::AssertSqlSafe;
use testkit::need;

use crate::crashes::Stage;
use crate::{Process, terms, user};

const PLAYERS: u128 = 30;
const BATCH: u32 = 5;
/// Where the process of each cycle is killed.
const SCHEDULE: [Option<&str>; 5] =
    [None, Some("drops.cycle.read"), None, Some("drops.cycle.uncommitted"), Some("drops.cycle.committed")];

/// An admission cycle that pops players off the sorted set and then writes to SQL, with the same places to be killed at as ours.
pub(crate) async fn pop_first(process: &Process, redis: &str, prefix: &str, drop: DropId, batch: u32) {
    let client = redis::Client::open(redis).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let popped: Vec<(Vec<u8>, f64)> = redis::cmd("ZPOPMIN")
        .arg(format!("{prefix}popped"))
        .arg(batch)
        .query_async(&mut connection)
        .await
        .unwrap();
    fault::point("drops.cycle.read");
    if popped.is_empty() {
        return;
    }
    let mut tx = process.db.begin().await.unwrap();
    let places = vec!["?"; popped.len()].join(", ");
    let text = format!("UPDATE drop_entries SET state = 1 WHERE drop_id = ? AND user_id IN ({places})");
    db::on!(tx, raw => {
        let query = sqlx::query(AssertSqlSafe(text)).bind(&drop.as_uuid().as_bytes()[..]);
        popped.iter().fold(query, |query, (user, _)| query.bind(user)).execute(raw).await.unwrap();
    });
    fault::point("drops.cycle.uncommitted");
    tx.commit().await.unwrap();
    fault::point("drops.cycle.committed");
}

/// Everybody waits, in our line and in a sorted set for the other algorithm.
async fn all_waiting(stage: &Stage) -> DropId {
    let process = stage.process().await;
    let drop = process.open_drop(terms(BATCH, 1_000)).await.id;
    let mut connection = stage.keys.connect().await;
    for player in 1..=PLAYERS {
        let entry = process.join(drop, player).await.unwrap();
        let mut add = redis::cmd("ZADD");
        add.arg(stage.keys.key("popped")).arg(entry.number).arg(&user(player).as_uuid().as_bytes()[..]);
        add.exec_async(&mut connection).await.unwrap();
    }
    process.db.close().await;
    drop
}

/// Runs cycles by the schedule, then as many without faults as admit everybody who can still be admitted. Returns who never is.
async fn lost(stage: &Stage, action: &str) -> Vec<u128> {
    let drop = all_waiting(stage).await;
    for point in SCHEDULE {
        stage.elsewhere(action, drop, point).await;
    }
    let process = stage.process().await;
    for _ in 0..PLAYERS {
        match action.split_once(' ') {
            Some(("pop", _)) => {
                pop_first(&process, stage.keys.url(), stage.keys.prefix(), drop, BATCH).await;
            }
            _ => std::mem::drop(process.cycle(drop).await),
        }
    }
    let lost = process.waiting(drop).await;
    let admitted = process.in_state(drop, EntryState::Entered).await;
    assert_eq!(lost.len() + admitted.len(), PLAYERS as usize);
    process.db.close().await;
    lost
}

#[tokio::test(flavor = "multi_thread")]
async fn pop_first_loses_players() {
    for stage in need!(Stage::all().await) {
        let lost_by_popping = lost(&stage, &format!("pop {BATCH}")).await;
        assert_eq!(lost_by_popping.len(), 2 * BATCH as usize, "a batch for each kill between pop and commit");
    }
    for stage in need!(Stage::all().await) {
        assert_eq!(lost(&stage, "cycle").await, [0_u128; 0], "ours loses nobody under the same faults");
    }
}

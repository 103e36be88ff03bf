//! A control experiment: popping players from Redis first loses them, which is why cycles read SQL and update the line after the commit.

use drops::DropId;
use drops::model::EntryState;
use runtime::fault;
use sqlx::AssertSqlSafe;
use testkit::need;

use crate::crashes::TestStores;
use crate::{Process, terms, user};

const PLAYERS: u128 = 30;
const BATCH: u32 = 5;
/// The fault point at which the process of each cycle is killed.
const SCHEDULE: [Option<&str>; 5] =
    [None, Some("drops.cycle.read"), None, Some("drops.cycle.uncommitted"), Some("drops.cycle.committed")];

/// Runs an admission cycle that pops players from the sorted set and then writes to SQL. It has the same fault points as ours.
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
    let placeholders = vec!["?"; popped.len()].join(", ");
    let text = format!("UPDATE drop_entries SET state = 1 WHERE drop_id = ? AND user_id IN ({placeholders})");
    db::on!(tx, raw => {
        let query = sqlx::query(AssertSqlSafe(text)).bind(&drop.as_uuid().as_bytes()[..]);
        popped.iter().fold(query, |query, (user, _)| query.bind(user)).execute(raw).await.unwrap();
    });
    fault::point("drops.cycle.uncommitted");
    tx.commit().await.unwrap();
    fault::point("drops.cycle.committed");
}

/// Opens a drop whose players wait in our line and in a sorted set for the other algorithm.
async fn drop_with_all_waiting(stores: &TestStores) -> DropId {
    let process = stores.process().await;
    let drop = process.open_drop(terms(BATCH, 1_000)).await.id;
    let mut connection = stores.keys.connect().await;
    for player in 1..=PLAYERS {
        let entry = process.join(drop, player).await.unwrap();
        let mut add = redis::cmd("ZADD");
        add.arg(stores.keys.key("popped")).arg(entry.number).arg(&user(player).as_uuid().as_bytes()[..]);
        add.exec_async(&mut connection).await.unwrap();
    }
    process.db.close().await;
    drop
}

/// Runs cycles with the scheduled faults, then enough without faults to admit all remaining players. Returns the players who never are.
async fn lost(stores: &TestStores, action: &str) -> Vec<u128> {
    let drop = drop_with_all_waiting(stores).await;
    for point in SCHEDULE {
        stores.run_in_other_process(action, drop, point).await;
    }
    let process = stores.process().await;
    for _ in 0..PLAYERS {
        match action.split_once(' ') {
            Some(("pop", _)) => {
                pop_first(&process, stores.keys.url(), stores.keys.prefix(), drop, BATCH).await;
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
    for stores in need!(TestStores::all().await) {
        let lost_by_popping = lost(&stores, &format!("pop {BATCH}")).await;
        assert_eq!(lost_by_popping.len(), 2 * BATCH as usize, "a batch for each kill between pop and commit");
    }
    for stores in need!(TestStores::all().await) {
        assert_eq!(
            lost(&stores, "cycle").await,
            [0_u128; 0],
            "our cycle loses no player under the same faults"
        );
    }
}

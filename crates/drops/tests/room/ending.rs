//! Players who still wait when a drop ends.

use std::collections::HashSet;

use base::id::Uuid;
use drops::model::{EntryState, LeftReason};
use drops::{DropId, EndMode, Error, PlayerStatus};
use testkit::need;

use crate::crashes::TestStores;
use crate::{Process, on_all_backends, terms, user};

on_all_backends!(
    every_waiting_player_is_notified_once,
    event_says_why_the_drop_ended,
    close_racing_with_joins_leaves_no_player_waiting,
);

const WAIT_ENDED: &str = "playhouse.drop.wait_ended.v1";

impl Process {
    /// Returns the players who were notified that this drop ended, once per notification.
    async fn notified(&self, drop: DropId) -> Vec<u128> {
        let events = self.events(WAIT_ENDED).await;
        let of_drop = events.iter().filter(|event| event["drop_id"] == drop.to_string());
        let player = |event: &serde_json::Value| {
            Uuid::try_parse(event["user_id"].as_str().unwrap()).unwrap().as_u128()
        };
        let mut players: Vec<u128> = of_drop.map(player).collect();
        players.sort_unstable();
        players
    }
}

async fn every_waiting_player_is_notified_once(process: &Process) {
    // More than two transactions.
    const PLAYERS: u128 = 1_100;
    let drop = process.open_drop(terms(2, 100)).await.id;
    process.join_all(drop, PLAYERS).await;
    process.room.reconcile().await.unwrap();
    let admitted: HashSet<u128> = process.cycle(drop).await.into_iter().collect();
    let still: Vec<u128> = (1..=PLAYERS).filter(|player| !admitted.contains(player)).collect();
    assert_eq!(process.room.end_waiting().await.unwrap(), 0, "the drop is not over");
    process.drops.close(drop, EndMode::UnlessReserved).await.unwrap();
    process.room.tick().await.unwrap();
    assert_eq!(
        process.notified(drop).await,
        [0_u128; 0],
        "admission cycles do not wait for thousands of notifications"
    );
    let ended = process.room.end_waiting().await.unwrap();
    assert_eq!(ended, still.len());
    assert_eq!(process.notified(drop).await, still);
    assert_eq!(process.waiting(drop).await, [0_u128; 0]);
    assert_eq!(process.line.len(drop).await.unwrap(), 0, "the line is removed");
    assert_eq!(process.room.end_waiting().await.unwrap(), 0, "every player is notified once");
    let player = still[0];
    assert_eq!(process.room.status(drop, user(player)).await.unwrap(), PlayerStatus::Left);
    let reasons = process.left_reasons(drop).await;
    assert_eq!(reasons, HashSet::from([Some(2)]), "{:?}", LeftReason::DropEnded);
}

impl Process {
    /// Returns the codes of the reasons why players left.
    async fn left_reasons(&self, drop: DropId) -> HashSet<Option<i32>> {
        let mut connection = self.db.connection().await.unwrap();
        let rows: Vec<Option<i32>> = db::on!(connection, raw => {
            sqlx::query_scalar("SELECT left_reason FROM drop_entries WHERE drop_id = ? AND state = 2")
                .bind(&drop.as_uuid().as_bytes()[..])
                .fetch_all(raw)
                .await
                .unwrap()
        });
        rows.into_iter().collect()
    }
}

async fn event_says_why_the_drop_ended(process: &Process) {
    let [sold, closed, cancelled] = [(); 3].map(|()| process.open_drop(terms(1, 10)));
    let (sold, closed, cancelled) = (sold.await, closed.await, cancelled.await);
    for drop in [&sold, &closed, &cancelled] {
        process.join(drop.id, 1).await.unwrap();
    }
    process.execute("UPDATE drop_stock SET available = 0, sold = 10 WHERE drop_id = ?", sold.id).await;
    process.drops.close_due().await.unwrap();
    process.drops.close(closed.id, EndMode::Forced).await.unwrap();
    process.drops.cancel(cancelled.id, EndMode::Forced).await.unwrap();
    process.room.end_waiting().await.unwrap();
    let events = process.events(WAIT_ENDED).await;
    assert_eq!(events.len(), 3);
    for (drop, reason) in [(&sold, "SOLD_OUT"), (&closed, "CLOSED"), (&cancelled, "CANCELLED")] {
        let event = events.iter().find(|event| event["drop_id"] == drop.id.to_string()).unwrap();
        assert_eq!((&event["reason"], &event["drop_name"]), (&reason.into(), &drop.name.clone().into()));
        assert_eq!(event["user_id"], user(1).to_string());
    }
}

async fn close_racing_with_joins_leaves_no_player_waiting(process: &Process) {
    const PLAYERS: u128 = 200;
    let drop = process.open_drop(terms(1, 10)).await.id;
    let joins = (1..=PLAYERS).map(|player| {
        let process = process.clone();
        tokio::spawn(async move {
            let joined = process.join(drop, player).await;
            (player, joined)
        })
    });
    let joins: Vec<_> = joins.collect();
    let closing = {
        let process = process.clone();
        tokio::spawn(async move {
            process.drops.close(drop, EndMode::UnlessReserved).await.unwrap();
            process.room.end_waiting().await.unwrap();
        })
    };
    let mut joined = Vec::new();
    for join in joins {
        match join.await.unwrap() {
            (player, Ok(_)) => joined.push(player),
            (_, Err(error)) => assert!(matches!(error, Error::NotJoinable(_)), "{error:?}"),
        }
    }
    closing.await.unwrap();
    process.room.end_waiting().await.unwrap();
    joined.sort_unstable();
    assert_eq!(process.notified(drop).await, joined, "exactly the players who joined before the end");
    assert_eq!(process.waiting(drop).await, [0_u128; 0]);
    process.room.reconcile().await.unwrap();
    assert_eq!(process.line.len(drop).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn notifying_resumes_after_kill() {
    const PLAYERS: u128 = 700;
    for stores in need!(TestStores::all().await) {
        for point in ["drops.end.uncommitted", "drops.end.committed", "drops.end.uncommitted@2"] {
            let process = stores.process().await;
            let drop = process.open_drop(terms(1, 10)).await.id;
            process.join_all(drop, PLAYERS).await;
            process.drops.close(drop, EndMode::UnlessReserved).await.unwrap();
            // Only one process may open a SQLite file.
            process.db.close().await;
            std::mem::drop(process);
            stores.run_in_other_process("end", drop, Some(point)).await;
            let process = stores.process().await;
            let before = process.notified(drop).await.len();
            let left = process.in_state(drop, EntryState::Left).await.len();
            assert_eq!(left, before, "{point}: an entry and its event commit together");
            assert!(before < PLAYERS as usize, "{point}");
            process.room.end_waiting().await.unwrap();
            assert_eq!(process.notified(drop).await, (1..=PLAYERS).collect::<Vec<_>>(), "{point}");
            process.db.close().await;
        }
    }
}

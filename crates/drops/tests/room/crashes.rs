//! Processes that are killed between two steps.

use std::os::unix::process::ExitStatusExt;

use drops::model::EntryState;
use drops::{DropId, PlayerStatus};
use testkit::{Program, Redis, RedisNamespace, TestDatabase, eventually, need};

use crate::pop_first::pop_first;
use crate::{PATIENCE, Process, line_at, owning, terms, user};

/// The task of the process that is killed.
const TASK_ENV: &str = "TESTKIT_DOOMED_ROOM";
const NOT_KILLED: &str = "it was not killed";

/// The stores that the processes of one test share.
pub(crate) struct TestStores {
    pub(crate) place: TestDatabase,
    pub(crate) keys: RedisNamespace,
}

impl TestStores {
    pub(crate) async fn all() -> Result<Vec<Self>, testkit::Error> {
        let redis = Redis::shared().await?;
        let places = TestDatabase::all().await?;
        Ok(places.into_iter().map(|place| Self { place, keys: redis.namespace() }).collect())
    }

    pub(crate) async fn process(&self) -> Process {
        Process::open(&self.place.url(), line_at(self.keys.url(), self.keys.prefix()).await).await
    }

    /// Runs an action in another process. It is killed at `point`, or else runs to the end.
    pub(crate) async fn run_in_other_process(&self, action: &str, drop: DropId, point: Option<&str>) {
        let (url, redis, prefix) = (self.place.url(), self.keys.url(), self.keys.prefix());
        let program = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "crashes::other_process", "--nocapture"])
            .env(TASK_ENV, [url.as_str(), redis, prefix, &drop.to_string(), action].join("\n"));
        let program = match point {
            Some(point) => program.env("TESTKIT_FAULT", point),
            None => program,
        };
        let running = program.start().unwrap();
        let status = running.wait(PATIENCE).await;
        match point {
            Some(point) => assert_eq!(status.signal(), Some(9), "{point}: {:?}", running.lines()),
            None => assert!(status.success(), "{:?}", running.lines()),
        }
    }
}

/// Runs the action in the other process. Does nothing when run as a test.
#[tokio::test(flavor = "multi_thread")]
async fn other_process() {
    let Ok(task) = std::env::var(TASK_ENV) else { return };
    let [url, redis, prefix, drop, action] = task.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let process = Process::open(url, line_at(redis, prefix).await).await;
    let drop: DropId = drop.parse().unwrap();
    match action.split_once(' ') {
        Some(("join", player)) => drop_result(process.join(drop, player.parse().unwrap()).await.unwrap()),
        Some(("pop", batch)) => pop_first(&process, redis, prefix, drop, batch.parse().unwrap()).await,
        _ if action == "end" => drop_result(process.room.end_waiting().await.unwrap()),
        _ if action == "rebuild" => drop_result(process.room.rebuild(drop).await.unwrap()),
        _ => drop_result(process.cycle(drop).await),
    }
    process.db.close().await;
    println!("{NOT_KILLED}");
}

fn drop_result<T>(_: T) {}

/// Opens a drop with four waiting players and a filled line.
async fn drop_with_four_waiting(stores: &TestStores) -> DropId {
    let process = stores.process().await;
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=4 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    // Only one process may open a SQLite file.
    process.db.close().await;
    drop
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_between_join_and_line_keeps_the_place() {
    for stores in need!(TestStores::all().await) {
        let drop = drop_with_four_waiting(&stores).await;
        stores.run_in_other_process("join 5", drop, Some("drops.join.uncommitted")).await;
        stores.run_in_other_process("join 6", drop, Some("drops.join.committed")).await;
        let process = stores.process().await;
        process.join(drop, 7).await.unwrap();
        assert_eq!(process.waiting(drop).await, [1, 2, 3, 4, 6, 7], "only the committed join has a place");
        assert_eq!(process.in_line(drop).await, [1, 2, 3, 4, 7], "the line lacks the player");
        // Joining again or reading the status keeps the place.
        assert_eq!(process.join(drop, 6).await.unwrap().number, 5);
        let PlayerStatus::Waiting(_) = process.room.status(drop, user(6)).await.unwrap() else {
            panic!("does not wait")
        };
        assert_eq!(process.in_line(drop).await, [1, 2, 3, 4, 6, 7]);
        let mut order = Vec::new();
        for _ in 0..3 {
            order.extend(process.cycle(drop).await);
        }
        assert_eq!(order, [1, 2, 3, 4, 6, 7]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_before_the_commit_of_a_cycle_admits_no_player() {
    for stores in need!(TestStores::all().await) {
        for point in ["drops.cycle.read", "drops.cycle.uncommitted"] {
            let drop = drop_with_four_waiting(&stores).await;
            stores.run_in_other_process("cycle", drop, Some(point)).await;
            let process = stores.process().await;
            assert_eq!(process.in_line(drop).await, [1, 2, 3, 4], "the line is untouched");
            assert_eq!(process.events("playhouse.drop.admitted.v1").await.len(), 0);
            assert_eq!(process.cycle(drop).await, [1, 2], "the same players are admitted next");
            assert_eq!(process.events("playhouse.drop.admitted.v1").await.len(), 2);
            process.execute("DELETE FROM outbox WHERE ? <> ''", drop).await;
            process.db.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_between_admission_and_line_admits_once() {
    for stores in need!(TestStores::all().await) {
        let drop = drop_with_four_waiting(&stores).await;
        stores.run_in_other_process("cycle", drop, Some("drops.cycle.committed")).await;
        let process = stores.process().await;
        assert_eq!(process.in_state(drop, EntryState::Entered).await, [1, 2]);
        assert_eq!(process.in_line(drop).await, [1, 2, 3, 4], "they are still in the line");
        assert_eq!(process.cycle(drop).await, [3, 4], "no player is admitted twice");
        assert_eq!(process.in_line(drop).await, [0_u128; 0], "they were removed by the next cycle");
        let events = process.events("playhouse.drop.admitted.v1").await;
        let mut players: Vec<_> = events.iter().map(|event| event["user_id"].as_str().unwrap()).collect();
        players.dedup();
        assert_eq!(players.len(), 4, "every player was notified once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn next_cycle_removes_admitted_players_behind_the_front() {
    for stores in need!(TestStores::all().await) {
        let process = stores.process().await;
        let mut laned = terms(2, 1_000);
        laned.lanes = vec!["gold".to_owned()];
        let drop = process.open_drop(laned).await.id;
        for player in 1..=3 {
            process.join(drop, player).await.unwrap();
        }
        process.room.reconcile().await.unwrap();
        // Only one process may open a SQLite file.
        process.db.close().await;
        std::mem::drop(process);
        stores.run_in_other_process("cycle", drop, Some("drops.cycle.committed")).await;
        let process = stores.process().await;
        // These players joined later, in a priority lane before the players that the killed process left in the line.
        for player in 100..300 {
            process.room.join(drop, owning(player, &["gold"])).await.unwrap();
        }
        assert_eq!(process.cycle(drop).await, [100, 101]);
        let line = process.in_line(drop).await;
        assert_eq!(line.iter().filter(|player| **player < 100).copied().collect::<Vec<_>>(), [3]);
        for player in [1, 2] {
            let status = process.room.status(drop, user(player)).await.unwrap();
            assert!(matches!(status, PlayerStatus::Entered(_)), "{status:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuild_resumes_after_kill() {
    for stores in need!(TestStores::all().await) {
        for point in ["drops.rebuild.begun", "drops.rebuild.filled"] {
            let drop = drop_with_four_waiting(&stores).await;
            stores.run_in_other_process("rebuild", drop, Some(point)).await;
            let process = stores.process().await;
            let PlayerStatus::Waiting(waiting) = process.room.status(drop, user(2)).await.unwrap() else {
                panic!("does not wait")
            };
            assert_eq!(waiting.position, None, "{point}: a partly filled line has no positions");
            assert_eq!(process.room.rebuild(drop).await.unwrap(), None, "{point}: the lease is not over");
            process.join(drop, 5).await.unwrap();
            assert_eq!(process.cycle(drop).await, [1, 2], "{point}: admissions continue");
            let rebuilt = async || process.room.rebuild(drop).await.unwrap();
            assert_eq!(eventually("the lease ends", PATIENCE, rebuilt).await, 3, "{point}");
            assert_eq!(process.in_line(drop).await, [3, 4, 5], "{point}");
            process.db.close().await;
        }
    }
}

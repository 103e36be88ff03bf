//! Processes that are killed between two steps.

use std::os::unix::process::ExitStatusExt;

use drops::model::EntryState;
use drops::{DropId, Standing};
use testkit::{Keyspace, Program, Redis, SqlPlace, eventually, need};

use crate::pop_first::pop_first;
use crate::{PATIENCE, Process, line_at, owning, terms, user};

/// Has what the process is to do that is killed.
const DOOMED: &str = "TESTKIT_DOOMED_ROOM";
const SURVIVED: &str = "it was not killed";

/// Where processes of one test meet.
pub(crate) struct Stage {
    pub(crate) place: SqlPlace,
    pub(crate) keys: Keyspace,
}

impl Stage {
    pub(crate) async fn all() -> Result<Vec<Self>, testkit::Error> {
        let redis = Redis::shared().await?;
        let places = SqlPlace::all().await?;
        Ok(places.into_iter().map(|place| Self { place, keys: redis.keyspace() }).collect())
    }

    pub(crate) async fn process(&self) -> Process {
        Process::open(&self.place.url(), line_at(self.keys.url(), self.keys.prefix()).await).await
    }

    /// Has another process do something. It is killed at this point, or else does it to the end.
    pub(crate) async fn elsewhere(&self, action: &str, drop: DropId, point: Option<&str>) {
        let (url, redis, prefix) = (self.place.url(), self.keys.url(), self.keys.prefix());
        let program = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "crashes::doomed_process", "--nocapture"])
            .env(DOOMED, [url.as_str(), redis, prefix, &drop.to_string(), action].join("\n"));
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

/// What runs in the process that is killed. Does nothing when it is run as a test.
#[tokio::test(flavor = "multi_thread")]
async fn doomed_process() {
    let Ok(task) = std::env::var(DOOMED) else { return };
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
    println!("{SURVIVED}");
}

fn drop_result<T>(_: T) {}

/// Four players wait, and the line knows them.
async fn four_waiting(stage: &Stage) -> DropId {
    let process = stage.process().await;
    let drop = process.open_drop(terms(2, 100)).await.id;
    for player in 1..=4 {
        process.join(drop, player).await.unwrap();
    }
    process.room.reconcile().await.unwrap();
    // A SQLite file has one process.
    process.db.close().await;
    drop
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_the_join_and_the_line() {
    for stage in need!(Stage::all().await) {
        let drop = four_waiting(&stage).await;
        stage.elsewhere("join 5", drop, Some("drops.join.uncommitted")).await;
        stage.elsewhere("join 6", drop, Some("drops.join.committed")).await;
        let process = stage.process().await;
        process.join(drop, 7).await.unwrap();
        assert_eq!(
            process.waiting(drop).await,
            [1, 2, 3, 4, 6, 7],
            "uncommitted is nothing, committed a place"
        );
        assert_eq!(process.in_line(drop).await, [1, 2, 3, 4, 7], "the line lacks the player");
        // Who asks again has the place of before, and so has who only looks.
        assert_eq!(process.join(drop, 6).await.unwrap().number, 5);
        let Standing::Waiting(_) = process.room.standing(drop, user(6)).await.unwrap() else {
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
async fn killed_after_reading_the_batch_before_the_commit() {
    for stage in need!(Stage::all().await) {
        for point in ["drops.cycle.read", "drops.cycle.uncommitted"] {
            let drop = four_waiting(&stage).await;
            stage.elsewhere("cycle", drop, Some(point)).await;
            let process = stage.process().await;
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
async fn killed_after_the_commit_before_the_line() {
    for stage in need!(Stage::all().await) {
        let drop = four_waiting(&stage).await;
        stage.elsewhere("cycle", drop, Some("drops.cycle.committed")).await;
        let process = stage.process().await;
        assert_eq!(process.in_state(drop, EntryState::Entered).await, [1, 2]);
        assert_eq!(process.in_line(drop).await, [1, 2, 3, 4], "they are still in the line");
        assert_eq!(process.cycle(drop).await, [3, 4], "nobody is admitted twice");
        assert_eq!(process.in_line(drop).await, [0_u128; 0], "they were removed by the next cycle");
        let events = process.events("playhouse.drop.admitted.v1").await;
        let mut players: Vec<_> = events.iter().map(|event| event["user_id"].as_str().unwrap()).collect();
        players.dedup();
        assert_eq!(players.len(), 4, "everybody was notified once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_commit_with_others_in_front_since() {
    for stage in need!(Stage::all().await) {
        let process = stage.process().await;
        let mut laned = terms(2, 1_000);
        laned.lanes = vec!["gold".to_owned()];
        let drop = process.open_drop(laned).await.id;
        for player in 1..=3 {
            process.join(drop, player).await.unwrap();
        }
        process.room.reconcile().await.unwrap();
        // A SQLite file has one process.
        process.db.close().await;
        std::mem::drop(process);
        stage.elsewhere("cycle", drop, Some("drops.cycle.committed")).await;
        let process = stage.process().await;
        // A lane of players who came later and wait in front of those that the killed process left in the line.
        for player in 100..300 {
            process.room.join(drop, owning(player, &["gold"])).await.unwrap();
        }
        assert_eq!(process.cycle(drop).await, [100, 101]);
        let line = process.in_line(drop).await;
        assert_eq!(line.iter().filter(|player| **player < 100).copied().collect::<Vec<_>>(), [3]);
        for player in [1, 2] {
            let standing = process.room.standing(drop, user(player)).await.unwrap();
            assert!(matches!(standing, Standing::Entered(_)), "{standing:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_a_rebuild() {
    for stage in need!(Stage::all().await) {
        for point in ["drops.rebuild.begun", "drops.rebuild.filled"] {
            let drop = four_waiting(&stage).await;
            stage.elsewhere("rebuild", drop, Some(point)).await;
            let process = stage.process().await;
            let Standing::Waiting(waiting) = process.room.standing(drop, user(2)).await.unwrap() else {
                panic!("does not wait")
            };
            assert_eq!(waiting.position, None, "{point}: half a line answers nothing");
            assert_eq!(process.room.rebuild(drop).await.unwrap(), None, "{point}: the lease is not over");
            process.join(drop, 5).await.unwrap();
            assert_eq!(process.cycle(drop).await, [1, 2], "{point}: admissions go on");
            let rebuilt = async || process.room.rebuild(drop).await.unwrap();
            assert_eq!(eventually("the lease ends", PATIENCE, rebuilt).await, 3, "{point}");
            assert_eq!(process.in_line(drop).await, [3, 4, 5], "{point}");
            process.db.close().await;
        }
    }
}

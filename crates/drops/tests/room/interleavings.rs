//! Random interleavings of joins, leaves, cycles and losses of the line: no player is lost or admitted twice, and order and limits hold.

use std::collections::{BTreeMap, HashSet};

use drops::model::{EntryState, LineEntry, LineMember};
use drops::{DropId, Error};
use fastrand::Rng;
use testkit::{Redis, Seed, TestDatabase, need};

use crate::kendall::kendall_tau;
use crate::{LineBackend, Process, backends, number, owning, terms, user};

const STEPS: usize = 150;
const PLAYERS: u128 = 25;
const BATCH: u32 = 4;
const CAPACITY: u32 = 9;

/// The expected state of a drop, updated with every step.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<LineMember, LineEntry>,
    inside: HashSet<u128>,
    admissions: HashSet<String>,
    /// Join numbers in the order of their admission.
    admitted: Vec<i64>,
}

struct Walk<'a> {
    process: &'a Process,
    drop: DropId,
    choices: Rng,
    has_lanes: bool,
    model: Model,
}

impl Walk<'_> {
    async fn step(&mut self) {
        let player = self.choices.u128(1..=PLAYERS);
        match self.choices.u8(0..20) {
            0..=8 => self.join(player).await,
            9..=10 => self.leave(player).await,
            11..=13 => self.cycle().await,
            14 => self.expire().await,
            15 => self.process.line.clear(self.drop).await.unwrap(),
            16..=17 => self.lose_some_of_the_line().await,
            18 => drop(self.process.room.status(self.drop, user(player)).await.unwrap()),
            _ => drop(self.process.room.reconcile().await.unwrap()),
        }
    }

    async fn join(&mut self, player: u128) {
        let owns: &[&str] = if self.has_lanes && player.is_multiple_of(3) { &["gold"] } else { &[] };
        let entry = self.process.room.join(self.drop, owning(player, owns)).await.unwrap();
        let waiting = self.model.waiting.values().find(|waiting| waiting.user == entry.user);
        match waiting {
            Some(waiting) => assert_eq!(entry, *waiting, "joining again changes nothing"),
            None if self.model.inside.contains(&player) => assert_eq!(entry.state, EntryState::Entered),
            None => {
                let last = self.model.waiting.values().map(|entry| entry.number).max();
                assert!(Some(entry.number) > last, "a later join has a higher number");
                self.model.waiting.insert(entry.line_member(), entry);
            }
        }
    }

    async fn leave(&mut self, player: u128) {
        let left = self.process.room.leave(self.drop, user(player)).await;
        let member = self.model.waiting.keys().find(|member| number(member.user) == player).copied();
        let was_there = member.is_some_and(|member| self.model.waiting.remove(&member).is_some())
            | self.model.inside.remove(&player);
        assert_eq!(was_there, left.is_ok());
        assert!(was_there || matches!(left, Err(Error::NotInLine)));
    }

    async fn cycle(&mut self) {
        let admitted = self.process.cycle(self.drop).await;
        let room = CAPACITY as usize - self.model.inside.len();
        let expected: Vec<LineEntry> =
            self.model.waiting.values().take(room.min(BATCH as usize)).cloned().collect();
        let players: Vec<u128> = expected.iter().map(|entry| number(entry.user)).collect();
        assert_eq!(admitted, players, "the first players in order, as many as both limits allow");
        for entry in expected {
            self.model.waiting.remove(&entry.line_member());
            assert!(self.model.inside.insert(number(entry.user)), "admitted twice");
            assert!(self.model.admissions.insert(entry.admission.to_string()), "admitted twice");
            self.model.admitted.push(entry.number);
        }
    }

    async fn expire(&mut self) {
        self.process.expire_admissions(self.drop).await;
        self.model.inside.clear();
        self.cycle().await;
    }

    /// Damages the line as a process does that dies between SQL and Redis: players are missing, stale, or have an old place.
    async fn lose_some_of_the_line(&mut self) {
        let line = &self.process.line;
        let members = line.first(self.drop, 100).await.unwrap();
        let lost: Vec<LineMember> = members.into_iter().filter(|_| self.choices.bool()).collect();
        line.remove(self.drop, &lost).await.unwrap();
        if let Some(member) = lost.first() {
            let stale = user(self.choices.u128(1..=2 * PLAYERS));
            line.add(self.drop, &[LineMember { place: member.place, user: stale }]).await.unwrap();
        }
    }

    /// Admits all players and checks the final state.
    async fn end(mut self) {
        while !self.model.waiting.is_empty() {
            self.expire().await;
        }
        assert_eq!(self.process.waiting(self.drop).await, [0_u128; 0], "no player is lost");
        self.process.room.reconcile().await.unwrap();
        assert_eq!(self.process.in_line(self.drop).await, [0_u128; 0]);
        let mut published: Vec<String> = Vec::new();
        for event in self.process.events("playhouse.drop.admitted.v1").await {
            if event["drop_id"] == self.drop.to_string() {
                published.push(event["admission_id"].as_str().unwrap().to_owned());
            }
        }
        let unique: HashSet<String> = published.iter().cloned().collect();
        assert_eq!((published.len(), unique), (self.model.admitted.len(), self.model.admissions));
        if !self.has_lanes {
            assert!((kendall_tau(&self.model.admitted) - 1.0).abs() < f64::EPSILON);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_steps_lose_no_player() {
    let seed = Seed::new();
    for (n, (place, line)) in (0..).zip(need!(backends().await)) {
        let process = Process::open(&place.url(), line.open().await).await;
        for has_lanes in [false, true] {
            let mut terms = terms(BATCH, CAPACITY);
            if has_lanes {
                terms.lanes = vec!["gold".to_owned()];
            }
            let drop = process.open_drop(terms).await.id;
            let choices = seed.choices(2 * n + u64::from(has_lanes));
            let mut walk = Walk { process: &process, drop, choices, has_lanes, model: Model::default() };
            for _ in 0..STEPS {
                walk.step().await;
            }
            walk.end().await;
        }
    }
}

/// Runs joins, leaves, cycles and losses of the line in concurrent tasks and, on servers, in two processes.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_steps_lose_no_player() {
    const TASKS: u64 = 6;
    const EACH: u128 = 25;
    let seed = Seed::new();
    let redis = need!(Redis::shared().await);
    for place in need!(TestDatabase::all().await) {
        let line = LineBackend::Redis(redis.namespace());
        let one = Process::open(&place.url(), line.open().await).await;
        let other = if place.is_server() {
            Process::open(&place.url(), line.open().await).await
        } else {
            one.clone()
        };
        let drop = one.open_drop(terms(5, 10_000)).await.id;
        let tasks = (0..TASKS).map(|task| {
            let process = if task % 2 == 0 { one.clone() } else { other.clone() };
            let mut choices = seed.choices(1_000 + task);
            tokio::spawn(async move {
                let mut left = Vec::new();
                for n in 1..=EACH {
                    let player = u128::from(task) * EACH + n;
                    process.join(drop, player).await.unwrap();
                    match choices.u8(0..8) {
                        0 => {
                            // A player who was admitted meanwhile can leave, too.
                            process.room.leave(drop, user(player)).await.unwrap();
                            left.push(player);
                        }
                        1..=2 => {
                            process.end_period(drop).await;
                            process.room.tick().await.unwrap();
                        }
                        3 => process.line.clear(drop).await.unwrap(),
                        4 => std::mem::drop(process.room.reconcile().await.unwrap()),
                        _ => {}
                    }
                }
                left
            })
        });
        let mut left = HashSet::new();
        for task in tasks.collect::<Vec<_>>() {
            left.extend(task.await.unwrap());
        }
        while !one.waiting(drop).await.is_empty() {
            one.cycle(drop).await;
        }
        let inside: HashSet<u128> = one.in_state(drop, EntryState::Entered).await.into_iter().collect();
        let all_players: HashSet<u128> = (1..=u128::from(TASKS) * EACH).collect();
        assert_eq!(&inside | &left, all_players, "no player is lost");
        // Every player joined once, so join numbers give the expected order of admissions.
        let mut connection = one.db.connection().await.unwrap();
        let numbers: Vec<(Vec<u8>, i64)> = db::on!(connection, raw => {
            sqlx::query_as("SELECT user_id, number FROM drop_entries WHERE drop_id = ?")
                .bind(&drop.as_uuid().as_bytes()[..])
                .fetch_all(raw).await.unwrap()
        });
        let numbers: BTreeMap<String, i64> = numbers
            .into_iter()
            .map(|(id, number)| (base::id::Uuid::from_slice(&id).unwrap().to_string(), number))
            .collect();
        let published: Vec<i64> = one
            .events("playhouse.drop.admitted.v1")
            .await
            .iter()
            .map(|event| numbers[event["user_id"].as_str().unwrap()])
            .collect();
        let unique: HashSet<i64> = published.iter().copied().collect();
        assert_eq!(unique.len(), published.len(), "no player is admitted twice");
        assert!(unique.len() >= inside.len());
        assert!((kendall_tau(&published) - 1.0).abs() < f64::EPSILON, "in order: {published:?}");
        one.room.reconcile().await.unwrap();
        assert_eq!(one.in_line(drop).await, [0_u128; 0]);
    }
}

//! Waiting rooms on real stores: SQLite and MariaDB (and MySQL where there is one), each with the line in memory and in Redis.

#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod admission;
mod crashes;
mod ending;
mod erasure;
#[path = "../support/events.rs"]
mod events;
mod interleavings;
mod joins;
#[path = "../support/kendall.rs"]
mod kendall;
mod lifecycle;
mod line;
mod outages;
mod pop_first;

use std::time::Duration;

use account::{AccountId, UserId};
use base::id::Uuid;
use base::{Backoff, Clock, Timestamp};
use config::{Setting, Value as Configured};
use db::{Db, DbUrl};
use drops::model::{
    AdmissionTerms, Audience, DropRecord, EntryState, LineOrder, Price, Terms, WhenSoldOut, WithoutRedis,
};
use drops::{AdmissionId, DropId, Drops, Eligibility, Error, Join, Line, NewDrop, Room, RoomMetrics};
use outbox::Outbox;
use prometheus_client::registry::Registry;
use redis_store::{Redis as RedisConnection, RedisStore};
use serde_json::Value;
use sqlx::AssertSqlSafe;
use testkit::{Redis, RedisNamespace, TestDatabase, need};

const PATIENCE: Duration = Duration::from_secs(20);
const NOW: i64 = 1_772_366_400_000;

/// Where the line is stored.
enum LineBackend {
    Memory,
    Redis(RedisNamespace),
}

impl LineBackend {
    async fn open(&self) -> Line {
        match self {
            Self::Memory => Line::new(&RedisStore::Memory, ""),
            Self::Redis(keys) => line_at(keys.url(), keys.prefix()).await,
        }
    }
}

async fn line_at(url: &str, prefix: &str) -> Line {
    let redis = RedisConnection::open(url, Duration::from_secs(1)).await.unwrap();
    Line::new(&RedisStore::Redis(redis), prefix)
}

/// A process with its own connections.
#[derive(Clone)]
struct Process {
    db: Db,
    drops: Drops,
    line: Line,
    room: Room,
}

impl Process {
    async fn open(url: &str, line: Line) -> Self {
        Self::open_within(url, line, Duration::from_secs(10)).await
    }

    async fn open_within(url: &str, line: Line, acquire_timeout: Duration) -> Self {
        let url = DbUrl::parse(&Configured::Text(url.to_owned())).unwrap();
        let config = db::Config { url, max_connections: 8, acquire_timeout, migrate: false };
        let db = Db::open(&config).await.unwrap();
        db.migrate(&[db::MIGRATIONS, outbox::MIGRATIONS, drops::MIGRATIONS]).await.unwrap();
        let clock = Clock::manual(Timestamp::from_millis(NOW));
        let queue = outbox::Config {
            workers: 1,
            batch: 100,
            poll: Duration::from_secs(1),
            lease: Duration::from_secs(60),
            max_attempts: 5,
            retry: Backoff::new(Duration::from_secs(1), Duration::from_secs(1)),
            retention: Duration::from_secs(3_600),
        };
        let metrics = outbox::Metrics::new(&mut Registry::default(), outbox::TABLE);
        let outbox = Outbox::new(db.clone(), queue, metrics, clock.clone());
        let drops = Drops::new(db.clone(), outbox, clock);
        let room = Room::new(drops.clone(), line.clone(), RoomMetrics::new(&mut Registry::default()));
        Self { db, drops, line, room }
    }

    /// Creates an open drop.
    async fn open_drop(&self, terms: Terms) -> DropRecord {
        let drop = self.draft(terms).await;
        self.drops.open(drop.id).await.unwrap()
    }

    async fn draft(&self, terms: Terms) -> DropRecord {
        let name = format!("drop {}", Uuid::now_v7());
        let new = NewDrop { name, resource: "sword".to_owned(), terms, stock: 10, actor: "test".to_owned() };
        self.drops.create(&new).await.unwrap()
    }

    async fn join(&self, drop: DropId, number: u128) -> Result<drops::model::LineEntry, Error> {
        self.room.join(drop, join(number)).await
    }

    /// Makes the next cycle due.
    async fn end_period(&self, drop: DropId) {
        self.execute("UPDATE drop_heads SET cycled_at = 0 WHERE drop_id = ?", drop).await;
    }

    /// Sets the time of the last cycle.
    async fn set_cycled_at(&self, drop: DropId, millis: i64) {
        let mut tx = self.db.begin().await.unwrap();
        db::on!(tx, connection => {
            sqlx::query("UPDATE drop_heads SET cycled_at = ? WHERE drop_id = ?")
                .bind(millis)
                .bind(&drop.as_uuid().as_bytes()[..])
                .execute(connection)
                .await
                .unwrap();
        });
        tx.commit().await.unwrap();
    }

    async fn cycled_at(&self, drop: DropId) -> i64 {
        let mut connection = self.db.connection().await.unwrap();
        db::on!(connection, raw => {
            sqlx::query_scalar("SELECT cycled_at FROM drop_heads WHERE drop_id = ?")
                .bind(&drop.as_uuid().as_bytes()[..])
                .fetch_one(raw)
                .await
                .unwrap()
        })
    }

    /// Makes all admissions expire.
    async fn expire_admissions(&self, drop: DropId) {
        self.execute("UPDATE drop_entries SET expires_at = 1 WHERE state = 1 AND drop_id = ?", drop).await;
    }

    async fn execute(&self, text: &'static str, drop: DropId) {
        let mut tx = self.db.begin().await.unwrap();
        db::on!(tx, connection => {
            sqlx::query(text).bind(&drop.as_uuid().as_bytes()[..]).execute(connection).await.unwrap();
        });
        tx.commit().await.unwrap();
    }

    /// Joins many players at once, numbers 1 to `count`.
    async fn join_all(&self, drop: DropId, count: u128) {
        let joins = (1..=count).map(|player| {
            let process = self.clone();
            tokio::spawn(async move { process.join(drop, player).await.unwrap() })
        });
        for join in joins.collect::<Vec<_>>() {
            join.await.unwrap();
        }
    }

    /// Makes a drop unreadable.
    async fn corrupt(&self, drop: DropId) {
        self.execute("UPDATE drops SET terms = '{}' WHERE drop_id = ?", drop).await;
    }

    /// Runs a cycle as if the period were over. Returns the admitted players, in order.
    async fn cycle(&self, drop: DropId) -> Vec<u128> {
        self.end_period(drop).await;
        let cycle = self.room.cycle(drop).await.unwrap().unwrap();
        cycle.admitted.iter().map(|member| number(member.user)).collect()
    }

    /// Returns the players in a state, by place.
    async fn in_state(&self, drop: DropId, state: EntryState) -> Vec<u128> {
        let state = [EntryState::Waiting, EntryState::Entered, EntryState::Left, EntryState::Expired]
            .iter()
            .position(|other| *other == state)
            .unwrap();
        let text = format!(
            "SELECT user_id FROM drop_entries WHERE drop_id = ? AND state = {state} ORDER BY place, user_id"
        );
        let mut connection = self.db.connection().await.unwrap();
        let rows: Vec<Vec<u8>> = db::on!(connection, raw => {
            sqlx::query_scalar(AssertSqlSafe(text))
                .bind(&drop.as_uuid().as_bytes()[..])
                .fetch_all(raw)
                .await
                .unwrap()
        });
        rows.iter().map(|id| Uuid::from_slice(id).unwrap().as_u128()).collect()
    }

    async fn waiting(&self, drop: DropId) -> Vec<u128> {
        self.in_state(drop, EntryState::Waiting).await
    }

    /// Returns the players in the line, in order.
    async fn in_line(&self, drop: DropId) -> Vec<u128> {
        self.line.first(drop, 100_000).await.unwrap().iter().map(|member| number(member.user)).collect()
    }

    /// Returns the data of all events of a kind in the outbox.
    async fn events(&self, kind: &str) -> Vec<Value> {
        events::events(&self.db, kind).await
    }

    /// Returns the admission of a player who is inside.
    async fn admission(&self, drop: DropId, player: u128) -> AdmissionId {
        match self.room.status(drop, user(player)).await.unwrap() {
            drops::PlayerStatus::Entered(admission) => admission.id,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the user id of player `number`.
fn user(number: u128) -> UserId {
    UserId::from_uuid(Uuid::from_u128(number))
}

fn number(user: UserId) -> u128 {
    user.as_uuid().as_u128()
}

fn join(number: u128) -> Join {
    owning(number, &[])
}

fn owning(number: u128, owns: &[&str]) -> Join {
    let owns = owns.iter().map(|resource| (*resource).to_owned()).collect();
    let account = AccountId::from_uuid(Uuid::from_u128(number << 64));
    Join { user: user(number), account, eligibility: Eligibility { roles: Vec::new(), owns } }
}

fn terms(batch: u32, capacity: u32) -> Terms {
    Terms {
        price: Price { amount: 999, currency: "EUR".to_owned() },
        per_player: 1,
        who: Audience::Anyone,
        lanes: Vec::new(),
        admission: AdmissionTerms {
            batch,
            period: Duration::from_secs(3),
            capacity,
            lifetime: Duration::from_secs(600),
            arrive_within: Duration::from_secs(60),
        },
        order: LineOrder::FirstCome,
        without_redis: WithoutRedis::Continue,
        when_sold_out: WhenSoldOut::Close,
        reservation: Duration::from_secs(60),
        message: None,
    }
}

/// Returns every SQL store with every line backend, each empty.
async fn backends() -> Result<Vec<(TestDatabase, LineBackend)>, testkit::Error> {
    let redis = Redis::shared().await?;
    let mut backends = Vec::new();
    for place in TestDatabase::all().await? {
        backends.push((place, LineBackend::Redis(redis.namespace())));
    }
    for place in TestDatabase::all().await? {
        backends.push((place, LineBackend::Memory));
    }
    Ok(backends)
}

/// Defines a test for each `async fn(&Process)`, run on every SQL store with every line backend.
macro_rules! on_all_backends {
    ($($name:ident),* $(,)?) => {
        mod on_all_backends {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                for (place, line) in testkit::need!(crate::backends().await) {
                    let process = crate::Process::open(&place.url(), line.open().await).await;
                    super::$name(&process).await;
                }
            })*
        }
    };
}
pub(crate) use on_all_backends;

#[tokio::test(flavor = "multi_thread")]
async fn joins_and_cycles_are_serialized_across_processes() {
    for place in need!(TestDatabase::servers().await) {
        let keys = need!(Redis::shared().await).namespace();
        let line = LineBackend::Redis(keys);
        let one = Process::open(&place.url(), line.open().await).await;
        let other = Process::open(&place.url(), line.open().await).await;
        let drop = one.open_drop(terms(3, 100)).await.id;
        let mut tasks = Vec::new();
        for player in 1..=60 {
            let process = if player % 2 == 0 { one.clone() } else { other.clone() };
            tasks.push(tokio::spawn(async move { process.join(drop, player).await.unwrap() }));
        }
        let mut numbers = Vec::new();
        for task in tasks {
            numbers.push(task.await.unwrap().number);
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=60).collect::<Vec<_>>(), "numbers are unique and without gaps");
        // The period applies across all processes.
        one.end_period(drop).await;
        let ticks = [&one, &other, &one, &other].map(|process| {
            let process = process.clone();
            tokio::spawn(async move { process.room.tick().await.unwrap() })
        });
        let mut admitted = 0;
        for tick in ticks {
            admitted += tick.await.unwrap().admitted;
        }
        assert_eq!(admitted, 3, "one batch per period");
    }
}

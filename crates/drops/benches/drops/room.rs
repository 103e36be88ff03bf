//! The waiting room at a million waiting players, on MariaDB and Redis: joins per second, the time to read a position compared with a raw ZRANK on
//! the same Redis, an admission cycle of 10,000, and the rebuild of the line from SQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use account::{AccountId, UserId};
use base::id::Uuid;
use base::{Backoff, Clock};
use config::{Setting, Value};
use db::{Db, DbUrl};
use drops::model::Terms;
use drops::{DropId, Drops, Eligibility, Join, Line, NewDrop, PlayerStatus, Room, RoomMetrics};
use fastrand::Rng;
use outbox::Outbox;
use prometheus_client::registry::Registry;
use redis_store::{Redis as RedisConnection, RedisStore};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySqlConnection};
use testkit::bench::Report;
use testkit::{Flavour, Redis, SqlServer};

const JOIN_TASKS: usize = 256;
const READ_TASKS: usize = 8;
const CYCLES: usize = 3;
const ROWS_AT_ONCE: u64 = 50_000;

/// How large the benchmark is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    waiting: u64,
    batch: u32,
    joining: Duration,
    /// How many positions each reader reads.
    reads: usize,
}

impl Size {
    /// The size of the published results.
    pub(super) const FULL: Self =
        Self { waiting: 1_000_000, batch: 10_000, joining: Duration::from_secs(5), reads: 5_000 };
    /// A quick check that the benchmark runs.
    pub(super) const SMALL: Self =
        Self { waiting: 5_000, batch: 500, joining: Duration::from_millis(300), reads: 50 };
}

struct Bench {
    size: Size,
    drops: Drops,
    room: Room,
    redis: redis::aio::ConnectionManager,
    sql: MySqlConnection,
}

pub(super) async fn run(report: &mut Report, size: Size) {
    let builder = SqlServer::builder(Flavour::Mariadb).durable().arg("--innodb-buffer-pool-size=2G");
    let (server, redis) = (builder.start().await.unwrap(), Redis::private().await.unwrap());
    let database = server.database().await;
    let mut bench = Bench::open(database.url(), &redis.url(), size).await;

    let joins = bench.joins().await;
    eprintln!("joins: {joins:.0}/s by {JOIN_TASKS} tasks");
    let drop = bench.waiting().await;
    let began = Instant::now();
    let filled = bench.room.rebuild(drop).await.unwrap();
    let rebuild = began.elapsed().as_secs_f64();
    assert_eq!(filled, Some(size.waiting));
    eprintln!("rebuild of {}: {rebuild:.2} s", size.waiting);
    let (position, zrank) = bench.positions(drop).await;
    eprintln!("position p99 {position:.3} ms, raw ZRANK p99 {zrank:.3} ms");
    let cycle = bench.cycles(drop).await;
    eprintln!("admission cycle of {}: {cycle:.3} s", size.batch);

    let row = |name: String, value: String| [name, String::new(), String::new(), value];
    report.row(row(format!("joins/s, {JOIN_TASKS} tasks"), format!("{joins:.0}")));
    report.row(row(format!("position read p99 at {} waiting, ms", size.waiting), format!("{position:.3}")));
    report.row(row("raw ZRANK p99 on the same Redis, ms".to_owned(), format!("{zrank:.3}")));
    report.row(row(format!("admission cycle of {}, s", size.batch), format!("{cycle:.3}")));
    report.row(row(format!("rebuild of {} from SQL, s", size.waiting), format!("{rebuild:.2}")));
    report.measure("joins", joins);
    report.measure("position_p99_ms", position);
    report.measure("position_to_zrank", position / zrank);
    report.measure("cycle_s", cycle);
    report.measure("rebuild_s", rebuild);
}

impl Bench {
    async fn open(sql: &str, redis: &str, size: Size) -> Self {
        let config = db::Config {
            url: DbUrl::parse(&Value::Text(sql.to_owned())).unwrap(),
            max_connections: 32,
            acquire_timeout: Duration::from_secs(60),
            migrate: true,
        };
        let db = Db::open(&config).await.unwrap();
        db.migrate(&[db::MIGRATIONS, outbox::MIGRATIONS, drops::MIGRATIONS]).await.unwrap();
        let clock = Clock::system();
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
        let drops = Drops::new(db, outbox, clock);
        let connection = RedisConnection::open(redis, Duration::from_secs(10)).await.unwrap();
        let raw = connection.connection.clone();
        let line = Line::new(&RedisStore::Redis(connection), "bench:");
        let room = Room::new(drops.clone(), line, RoomMetrics::new(&mut Registry::default()));
        let sql = config.server().unwrap().connect().await.unwrap();
        Self { size, drops, room, redis: raw, sql }
    }

    async fn open_drop(&self, name: &str) -> DropId {
        let terms: Terms = serde_json::from_value(serde_json::json!({
            "price": {"amount": 1, "currency": "EUR"},
            "per_player": 1,
            "admission": {
                "batch": self.size.batch, "capacity": 1_000_000, "lifetime_ms": 600_000, "arrive_within_ms": 60_000,
            },
            "reservation_ms": 60_000,
        }))
        .unwrap();
        let new = NewDrop {
            name: name.to_owned(),
            resource: "sword".to_owned(),
            terms,
            stock: 1,
            actor: "bench".to_owned(),
        };
        let id = self.drops.create(&new).await.unwrap().id;
        self.drops.open(id).await.unwrap().id
    }

    /// Returns how many players join per second.
    async fn joins(&self) -> f64 {
        let drop = self.open_drop("joins").await;
        let (next, began) = (Arc::new(AtomicU64::new(1)), Instant::now());
        let tasks = (0..JOIN_TASKS).map(|_| {
            let (room, next, joining) = (self.room.clone(), next.clone(), self.size.joining);
            tokio::spawn(async move {
                while began.elapsed() < joining {
                    let id = Uuid::from_u128(next.fetch_add(1, Ordering::Relaxed).into());
                    let (user, account) = (UserId::from_uuid(id), AccountId::from_uuid(id));
                    room.join(drop, Join { user, account, eligibility: Eligibility::default() })
                        .await
                        .unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        (next.load(Ordering::Relaxed) - 1) as f64 / began.elapsed().as_secs_f64()
    }

    /// Creates a drop with `size.waiting` waiting players, in bulk.
    async fn waiting(&mut self) -> DropId {
        let drop = self.open_drop("waiting").await;
        let id = drop.as_uuid().simple();
        let waiting = self.size.waiting;
        for start in (1..=waiting).step_by(ROWS_AT_ONCE as usize) {
            let end = (start + ROWS_AT_ONCE - 1).min(waiting);
            // The place of a join in the only lane, in the numbered phase.
            let text = format!(
                "INSERT INTO drop_entries (drop_id, user_id, account_id, state, number, place, joined_at, admission_id, changed_at) \
                 SELECT UNHEX('{id}'), UNHEX(MD5(seq)), UNHEX(MD5(seq)), 0, seq, (1 << 48) + seq, 0, UNHEX(MD5(-seq)), 0 \
                 FROM seq_{start}_to_{end}"
            );
            self.sql.execute(AssertSqlSafe(text)).await.unwrap();
        }
        let head = format!("UPDATE drop_heads SET joined = {waiting} WHERE drop_id = UNHEX('{id}')");
        self.sql.execute(AssertSqlSafe(head)).await.unwrap();
        self.sql.execute("ANALYZE TABLE drop_entries").await.unwrap();
        drop
    }

    /// Reads positions of random players and raw ranks in turn. Returns the 99th percentiles in milliseconds.
    async fn positions(&mut self, drop: DropId) -> (f64, f64) {
        let line = self.line_of(self.size.waiting).await;
        let ids: Vec<Vec<u8>> =
            sqlx::query_scalar("SELECT user_id FROM drop_entries WHERE drop_id = ? ORDER BY RAND() LIMIT ?")
                .bind(&drop.as_uuid().as_bytes()[..])
                .bind((READ_TASKS * self.size.reads) as i64)
                .fetch_all(&mut self.sql)
                .await
                .unwrap();
        let readers = ids.chunks(self.size.reads).map(|ids| {
            let (room, mut redis, line, ids) =
                (self.room.clone(), self.redis.clone(), line.clone(), ids.to_vec());
            tokio::spawn(async move {
                let (mut ours, mut raw) = (Vec::new(), Vec::new());
                let mut choices = Rng::with_seed(7);
                for id in ids {
                    let user = UserId::from_uuid(Uuid::from_slice(&id).unwrap());
                    for is_ours in if choices.bool() { [true, false] } else { [false, true] } {
                        let began = Instant::now();
                        if is_ours {
                            let status = room.status(drop, user).await.unwrap();
                            assert!(
                                matches!(status, PlayerStatus::Waiting(waiting) if waiting.position.is_some())
                            );
                            ours.push(began.elapsed());
                        } else {
                            let rank: Option<u64> = redis::cmd("ZRANK")
                                .arg(&line)
                                .arg(&id)
                                .query_async(&mut redis)
                                .await
                                .unwrap();
                            assert!(rank.is_some());
                            raw.push(began.elapsed());
                        }
                    }
                }
                (ours, raw)
            })
        });
        let (mut ours, mut raw) = (Vec::new(), Vec::new());
        for reader in readers.collect::<Vec<_>>() {
            let (of_reader, raw_of_reader) = reader.await.unwrap();
            ours.extend(of_reader);
            raw.extend(raw_of_reader);
        }
        (p99_ms(ours), p99_ms(raw))
    }

    /// Returns the key of the sorted set with this many members.
    async fn line_of(&mut self, length: u64) -> Vec<u8> {
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*line").query_async(&mut self.redis).await.unwrap();
        for key in keys {
            let found: u64 = redis::cmd("ZCARD").arg(&key).query_async(&mut self.redis).await.unwrap();
            if found == length {
                return key;
            }
        }
        panic!("no line has {length} players")
    }

    /// Returns the median time of admission cycles in seconds.
    async fn cycles(&mut self, drop: DropId) -> f64 {
        let mut times = Vec::new();
        for _ in 0..CYCLES {
            let text = format!(
                "UPDATE drop_heads SET cycled_at = 0 WHERE drop_id = UNHEX('{}')",
                drop.as_uuid().simple()
            );
            self.sql.execute(AssertSqlSafe(text)).await.unwrap();
            let began = Instant::now();
            let cycle = self.room.cycle(drop).await.unwrap().unwrap();
            times.push(began.elapsed().as_secs_f64());
            assert_eq!(cycle.admitted.len(), self.size.batch as usize);
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

fn p99_ms(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() * 99 / 100].as_secs_f64() * 1_000.0
}

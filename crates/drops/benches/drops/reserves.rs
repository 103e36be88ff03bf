//! Reserves per second on one hot item: grouped writes (ours), a conditional UPDATE of one row (the reference), split counters, and one row
//! per unit with SKIP LOCKED.
//!
//! All designs write the reservation and commit durably. Ours also checks the admission and the limit, and writes the ledger and the
//! idempotency key. The others do only the minimum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use account::UserId;
use base::id::Uuid;
use config::{Setting, Value};
use db::{Db, DbUrl, Tx};
use drops::stock::{Stock, VerifiedAdmission};
use drops::{AdmissionId, DropId};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySqlConnection};
use testkit::bench::Report;
use testkit::{Flavour, SqlServer};

const TASKS: [usize; 3] = [1, 64, 256];
const TURNS: usize = 3;
const TURN: Duration = Duration::from_millis(1_500);
const CONNECTIONS: u32 = 64;
/// More than all turns can reserve, so that every reserve has its own player and unit.
const PLAYERS: u64 = 600_000;
const UNITS: u64 = 300_000;
const COUNTERS: u64 = 16;

const ADMISSION: Uuid = Uuid::from_u128(7);
const DROP: Uuid = Uuid::from_u128(9);

#[derive(Clone, Copy)]
enum Design {
    Grouped,
    OneRow,
    Split,
    UnitRows,
}

const DESIGNS: [(Design, &str); 4] = [
    (Design::Grouped, "grouped writes (ours)"),
    (Design::OneRow, "conditional UPDATE of one row (reference)"),
    (Design::Split, "16 split counters"),
    (Design::UnitRows, "one row per unit, SKIP LOCKED"),
];

#[derive(Clone)]
struct Bench {
    db: Db,
    stock: Stock,
    /// The number of the next reserve.
    next: Arc<AtomicU64>,
}

/// Returns the ratio of our rate to the reference's, at 256 tasks.
pub(super) async fn run(report: &mut Report) -> f64 {
    let builder = SqlServer::builder(Flavour::Mariadb).durable().arg("--innodb-buffer-pool-size=2G");
    let server = builder.start().await.unwrap();
    let database = server.database().await;
    let url = DbUrl::parse(&Value::Text(database.url().to_owned())).unwrap();
    let config = db::Config {
        url,
        max_connections: CONNECTIONS,
        acquire_timeout: Duration::from_secs(60),
        migrate: true,
    };
    let db = Db::open(&config).await.unwrap();
    db.migrate(&[db::MIGRATIONS, drops::MIGRATIONS]).await.unwrap();
    prepare(&mut config.server().unwrap().connect().await.unwrap()).await;
    let bench = Bench { db: db.clone(), stock: Stock::new(db.clone()), next: Arc::default() };
    let mut tx = db.begin().await.unwrap();
    bench.stock.create_in(&mut tx, DropId::from_uuid(DROP), 1_000_000_000).unwrap();
    tx.commit().await.unwrap();
    // The rates of all turns, by design and number of tasks.
    let mut rates = vec![vec![Vec::new(); TASKS.len()]; DESIGNS.len()];
    for turn in 0..TURNS {
        for (at, tasks) in TASKS.into_iter().enumerate() {
            for (of, (design, name)) in DESIGNS.into_iter().enumerate() {
                let rate = bench.rate(design, tasks).await;
                eprintln!("turn {turn}, {tasks} tasks, {name}: {rate:.0}/s");
                rates[of][at].push(rate);
            }
        }
    }
    let audit = bench.stock.audit(DropId::from_uuid(DROP)).await.unwrap();
    assert!(audit.is_sound(), "{audit:?}");
    let medians: Vec<Vec<f64>> = rates.into_iter().map(|of| of.into_iter().map(median).collect()).collect();
    for ((_, name), of) in DESIGNS.iter().zip(&medians) {
        let rates = of.iter().map(|rate| format!("{rate:.0}"));
        report.row(std::iter::once((*name).to_owned()).chain(rates));
    }
    let [ours, reference] = [&medians[0], &medians[1]];
    report.measure("reserves_64_tasks", ours[1]);
    report.measure("reserves_256_tasks", ours[2]);
    report.measure("from_64_to_256_tasks", ours[2] / ours[1]);
    ours[2] / reference[2]
}

/// Creates the drop, its players, and the tables of the other designs.
async fn prepare(connection: &mut MySqlConnection) {
    let terms = r#"{"version":"1","price":{"amount":1,"currency":"EUR"},"per_player":1,
        "admission":{"batch":1,"capacity":1,"lifetime_ms":600000,"arrive_within_ms":60000},"reservation_ms":600000}"#;
    let id = |number: &str| format!("UNHEX(LPAD(HEX({number}), 32, '0'))");
    let (drop, admission) = (id("9"), id("7"));
    let mut texts = vec![
        format!(
            "INSERT INTO drops (drop_id, name, state, resource, created_at, version, terms, seed, everyone_waits) \
             VALUES ({drop}, 'bench', 2, 'sword', 0, 1, '{terms}', REPEAT('x', 32), 0)"
        ),
        "CREATE TABLE bare_stock (id BIGINT NOT NULL PRIMARY KEY, available BIGINT NOT NULL, reserved BIGINT NOT NULL) ENGINE = InnoDB"
            .to_owned(),
        "INSERT INTO bare_stock VALUES (0, 1000000000, 0)".to_owned(),
        "CREATE TABLE split_stock LIKE bare_stock".to_owned(),
        format!("INSERT INTO split_stock SELECT seq, 1000000000, 0 FROM seq_0_to_{}", COUNTERS - 1),
        "CREATE TABLE unit_stock (id BIGINT NOT NULL PRIMARY KEY, state INT NOT NULL, KEY by_state (state, id)) ENGINE = InnoDB"
            .to_owned(),
        format!("INSERT INTO unit_stock SELECT seq, 0 FROM seq_1_to_{UNITS}"),
    ];
    for start in (0..PLAYERS).step_by(50_000) {
        texts.push(format!(
            "INSERT INTO drop_entries (drop_id, user_id, account_id, state, number, place, joined_at, admission_id, entered_at, \
             expires_at, changed_at) SELECT {drop}, {}, {admission}, 1, seq, seq, 0, {admission}, 0, 9000000000000000, 0 \
             FROM seq_{start}_to_{}",
            id("seq"),
            start + 49_999
        ));
    }
    texts.push("ANALYZE TABLE drop_entries".to_owned());
    for text in texts {
        connection.execute(AssertSqlSafe(text)).await.unwrap();
    }
}

impl Bench {
    /// Returns the operations per second of all tasks together.
    async fn rate(&self, design: Design, tasks: usize) -> f64 {
        let (done, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let all = (0..tasks).map(|_| {
            let (bench, done) = (self.clone(), done.clone());
            tokio::spawn(async move {
                while began.elapsed() < TURN {
                    bench.reserve(design).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        for task in all.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
    }

    async fn reserve(&self, design: Design) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        match design {
            Design::Grouped => {
                let user = UserId::from_uuid(Uuid::from_u128((number % PLAYERS).into()));
                let admission = AdmissionId::from_uuid(ADMISSION);
                let admitted = VerifiedAdmission { drop: DropId::from_uuid(DROP), user, admission };
                self.stock.reserve(admitted, 1, "once").await.unwrap();
            }
            Design::OneRow => self.conditional("bare_stock", 0).await,
            Design::Split => self.conditional("split_stock", number % COUNTERS).await,
            Design::UnitRows => self.unit().await,
        }
    }

    /// Takes a unit from a counter and writes the reservation.
    async fn conditional(&self, table: &'static str, counter: u64) {
        let text = format!(
            "UPDATE {table} SET available = available - 1, reserved = reserved + 1 WHERE id = ? AND available >= 1"
        );
        let mut tx = self.db.begin().await.unwrap();
        let changed = db::on!(tx, connection => {
            sqlx::query(AssertSqlSafe(text)).bind(counter as i64).execute(connection).await.unwrap().rows_affected()
        });
        assert_eq!(changed, 1);
        reservation(&mut tx);
        tx.commit().await.unwrap();
    }

    async fn unit(&self) {
        let mut tx = self.db.begin().await.unwrap();
        db::on!(tx, connection => {
            let unit: i64 = sqlx::query_scalar(
                "SELECT id FROM unit_stock WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
            )
            .fetch_one(&mut *connection)
            .await
            .unwrap();
            sqlx::query("UPDATE unit_stock SET state = 1 WHERE id = ?").bind(unit).execute(&mut *connection).await.unwrap();
        });
        reservation(&mut tx);
        tx.commit().await.unwrap();
    }
}

/// Writes a reservation with the commit, as our design does. This saves a round trip.
fn reservation(tx: &mut Tx) {
    const ADD: &str = "INSERT INTO drop_reservations (reservation_id, drop_id, user_id, account_id, state, quantity, confirmed, \
        reserved_at, expires_at, ended_at)";
    let (id, user) = (Uuid::now_v7(), Uuid::now_v7());
    // Belongs to another drop, so that the audit does not count it.
    let row = [
        (&id).into(),
        (&ADMISSION).into(),
        (&user).into(),
        (&user).into(),
        2.into(),
        1.into(),
        0.into(),
        db::Value::Now,
        db::Value::After(Duration::from_secs(600)),
        db::Value::Null,
    ];
    tx.insert_at_commit(ADD, [row]);
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

//! Workers that repeat one method, and the measurement of their rate.

use std::time::{Duration, Instant};

use hierlock::{LockManager, Options, Provisioner, Target, create_tables};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Executor};
use testkit::{Database, SqlServer};

const SHARED: &str = "SELECT bucket FROM hier_lock_buckets WHERE level = ? AND bucket = ? LOCK IN SHARE MODE";
const EXCLUSIVE: &str = "SELECT bucket FROM hier_lock_buckets WHERE level = ? AND bucket = ? FOR UPDATE";
const UNION: &str = "(SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=? LOCK IN SHARE MODE) UNION ALL \
    (SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=? LOCK IN SHARE MODE) UNION ALL \
    (SELECT bucket FROM hier_lock_buckets WHERE level=? AND bucket=? FOR UPDATE)";
const SHARED_BY_KEY: &str = "SELECT 1 FROM hier_locks WHERE lock_key = ? LOCK IN SHARE MODE";
const EXCLUSIVE_BY_KEY: &str = "SELECT 1 FROM hier_locks WHERE lock_key = ? FOR UPDATE";
const INSERT: &str = "INSERT IGNORE INTO hier_locks (lock_key) VALUES (?)";

pub(crate) const TURN: Duration = Duration::from_millis(1_000);
pub(crate) const TURNS: usize = 5;
pub(crate) const BUCKETS: u32 = 1_000_000;
/// The number of players. Small enough for the designs that need a row per player.
pub(crate) const PLAYERS: u32 = 100_000;

/// How a worker locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Ours,
    /// Settings, begin, a prepared statement per row, roll back.
    Naive,
    /// Only the two statements of hierlock, on a prepared session.
    Bare,
    /// The cheapest possible round trip.
    Select1,
    /// A row per id, which exists; otherwise like naive.
    RowPerId,
    /// A row per id, which is inserted if necessary; otherwise like naive.
    InsertOnDemand,
}

/// Which targets a worker locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Targets {
    /// One resource of a random player.
    Anything,
    /// Several resources of a random player.
    Several(usize),
    /// The same resource as all other workers.
    TheSame,
}

pub(crate) struct Worker {
    method: Method,
    targets: Targets,
    locks: LockManager,
    connection: MySqlConnection,
}

impl Worker {
    pub(crate) async fn new(database: &LockDatabase, method: Method, targets: Targets) -> Self {
        let mut connection = database.options.connect().await.unwrap();
        connection.execute("SET SESSION innodb_lock_wait_timeout = 60").await.unwrap();
        if method == Method::Bare {
            connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
            connection.execute("SET SESSION autocommit = 0").await.unwrap();
        }
        Self { method, targets, locks: database.locks.clone(), connection }
    }

    /// Locks and releases once.
    async fn once(&mut self) {
        let user = match self.targets {
            Targets::TheSame => "shared-player".to_owned(),
            _ => format!("player-{}", fastrand::u32(0..PLAYERS)),
        };
        let resources: Vec<String> = match self.targets {
            Targets::Several(count) => (0..count).map(|number| format!("item-{number}")).collect(),
            _ => vec!["item".to_owned()],
        };
        match self.method {
            Method::Ours => {
                let lock = self.locks.acquire_resources(&user, "main", &resources).await.unwrap();
                lock.release().await.unwrap();
            }
            Method::Naive => self.naive(&user, &resources).await,
            Method::Bare => self.bare(&user).await,
            Method::Select1 => {
                sqlx::query("SELECT 1").fetch_all(&mut self.connection).await.unwrap();
            }
            Method::RowPerId => self.by_key(&user, &resources, false).await,
            Method::InsertOnDemand => self.by_key(&user, &resources, true).await,
        }
    }

    async fn begin(&mut self) {
        self.connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
        self.connection.execute("START TRANSACTION").await.unwrap();
    }

    async fn naive(&mut self, user: &str, resources: &[String]) {
        self.begin().await;
        self.row(SHARED, 0, Target::user(user).unwrap().bucket(BUCKETS)).await;
        self.row(SHARED, 1, Target::account(user, "main").unwrap().bucket(BUCKETS)).await;
        // Sorted by bucket, because the order of ids would deadlock.
        let bucket = |resource: &String| Target::resource(user, "main", resource).unwrap().bucket(BUCKETS);
        let mut buckets: Vec<u32> = resources.iter().map(bucket).collect();
        buckets.sort_unstable();
        for bucket in buckets {
            self.row(EXCLUSIVE, 2, bucket).await;
        }
        self.connection.execute("ROLLBACK").await.unwrap();
    }

    async fn bare(&mut self, user: &str) {
        let resource = Target::resource(user, "main", "item").unwrap();
        let query = sqlx::query(UNION)
            .bind(0_u8)
            .bind(Target::user(user).unwrap().bucket(BUCKETS))
            .bind(1_u8)
            .bind(Target::account(user, "main").unwrap().bucket(BUCKETS))
            .bind(2_u8)
            .bind(resource.bucket(BUCKETS));
        assert_eq!(query.fetch_all(&mut self.connection).await.unwrap().len(), 3);
        self.connection.execute("ROLLBACK").await.unwrap();
    }

    async fn row(&mut self, statement: &'static str, level: u8, bucket: u32) {
        let query = sqlx::query(statement).bind(level).bind(bucket);
        assert_eq!(query.fetch_all(&mut self.connection).await.unwrap().len(), 1);
    }

    async fn by_key(&mut self, user: &str, resources: &[String], insert: bool) {
        self.begin().await;
        let mut keys = vec![format!("u:{user}"), format!("a:{user}/main")];
        keys.extend(resources.iter().map(|resource| format!("r:{user}/main/{resource}")));
        for (depth, key) in keys.iter().enumerate() {
            if insert {
                sqlx::query(INSERT).bind(key).execute(&mut self.connection).await.unwrap();
            }
            let statement = if depth < 2 { SHARED_BY_KEY } else { EXCLUSIVE_BY_KEY };
            assert_eq!(
                sqlx::query(statement).bind(key).fetch_all(&mut self.connection).await.unwrap().len(),
                1
            );
        }
        // Keeps the inserted rows.
        self.connection.execute(if insert { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
    }
}

/// The figures of a method.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// Locks per second, the median of the turns.
    pub(crate) rate: f64,
    /// Processor time of server and client per lock. It varies less than the rate on a shared machine.
    pub(crate) micros: f64,
}

/// A database with buckets.
pub(crate) struct LockDatabase {
    pub(crate) options: MySqlConnectOptions,
    locks: LockManager,
    server: u32,
}

impl LockDatabase {
    pub(crate) async fn new(server: &SqlServer, database: &Database) -> Self {
        let options: MySqlConnectOptions = database.url().parse().unwrap();
        let options = options.disable_statement_logging();
        create_tables(&mut options.connect().await.unwrap()).await.unwrap();
        Provisioner::new(options.clone(), BUCKETS).run(|_| ()).await.unwrap();
        let settings = Options { buckets: BUCKETS, max_connections: 64, ..Options::default() };
        let locks = LockManager::mysql(options.clone(), &settings).await.unwrap();
        Self { options, locks, server: server.pid().unwrap() }
    }

    /// Returns the processor time of the server and this process, in seconds.
    fn processor_time(&self) -> f64 {
        [self.server, std::process::id()].into_iter().map(processor_time).sum()
    }

    /// Measures each method. Returns the figures in the same order.
    pub(crate) async fn compare(&self, tasks: usize, methods: &[(Method, Targets)]) -> Vec<Measured> {
        let mut groups = Vec::new();
        for (method, targets) in methods {
            let mut workers = Vec::new();
            for _ in 0..tasks {
                workers.push(Worker::new(self, *method, *targets).await);
            }
            // Warms up: opens connections and prepares statements.
            let (workers, _) = turn(workers, TURN / 5).await;
            groups.push((workers, Vec::new(), 0.0));
        }
        for _ in 0..TURNS {
            for (workers, rates, processor) in &mut groups {
                let before = self.processor_time();
                let (back, rate) = turn(std::mem::take(workers), TURN).await;
                *processor += (self.processor_time() - before) / rate / TURN.as_secs_f64();
                *workers = back;
                rates.push(rate);
            }
        }
        let measured =
            |(_, rates, processor)| Measured { rate: median(rates), micros: processor * 1e6 / TURNS as f64 };
        groups.into_iter().map(measured).collect()
    }
}

/// Lets all workers run for `time`. Returns them with their total rate per second.
async fn turn(workers: Vec<Worker>, time: Duration) -> (Vec<Worker>, f64) {
    let started = Instant::now();
    let work = workers.into_iter().map(|mut worker| {
        tokio::spawn(async move {
            let mut done = 0_u32;
            while started.elapsed() < time {
                worker.once().await;
                done += 1;
            }
            (worker, done)
        })
    });
    let mut back = Vec::new();
    let mut done = 0;
    for task in work.collect::<Vec<_>>() {
        let (worker, count) = task.await.unwrap();
        back.push(worker);
        done += count;
    }
    (back, f64::from(done) / started.elapsed().as_secs_f64())
}

fn processor_time(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // User and system time, in hundredths of a second.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

pub(crate) fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

//! Somebody who does one thing again and again, and how often that can be done in a second.

use std::time::{Duration, Instant};

use hierlock::{Locks, Options, Provision, Target, create_tables};
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
/// Players of whom one is locked at a time. Few enough to have a row each where a design wants that.
pub(crate) const PLAYERS: u32 = 100_000;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Ours,
    /// Settings, begin, a prepared statement per row, roll back.
    Naive,
    /// The two statements of ours by themselves, on a session that is set up for them.
    Bare,
    /// The least that can be asked of a server.
    Select1,
    /// A row per id, which is there already; otherwise as naive.
    RowPerId,
    /// A row per id, which is made if it is not there; otherwise as naive.
    InsertOnDemand,
}

/// Which rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Some resource of some player.
    Anything,
    /// So many resources of some player.
    Several(usize),
    /// The same as everybody.
    TheSame,
}

pub(crate) struct Worker {
    way: Way,
    wish: Wish,
    locks: Locks,
    connection: MySqlConnection,
}

impl Worker {
    pub(crate) async fn new(place: &Place, way: Way, wish: Wish) -> Self {
        let mut connection = place.options.connect().await.unwrap();
        connection.execute("SET SESSION innodb_lock_wait_timeout = 60").await.unwrap();
        if way == Way::Bare {
            connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
            connection.execute("SET SESSION autocommit = 0").await.unwrap();
        }
        Self { way, wish, locks: place.locks.clone(), connection }
    }

    /// Locks and releases once.
    async fn once(&mut self) {
        let user = match self.wish {
            Wish::TheSame => "everybody's".to_owned(),
            _ => format!("player-{}", fastrand::u32(0..PLAYERS)),
        };
        let resources: Vec<String> = match self.wish {
            Wish::Several(count) => (0..count).map(|number| format!("item-{number}")).collect(),
            _ => vec!["item".to_owned()],
        };
        match self.way {
            Way::Ours => {
                let lock = self.locks.acquire_resources(&user, "main", &resources).await.unwrap();
                lock.release().await.unwrap();
            }
            Way::Naive => self.naive(&user, &resources).await,
            Way::Bare => self.bare(&user).await,
            Way::Select1 => {
                sqlx::query("SELECT 1").fetch_all(&mut self.connection).await.unwrap();
            }
            Way::RowPerId => self.by_key(&user, &resources, false).await,
            Way::InsertOnDemand => self.by_key(&user, &resources, true).await,
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
        // In the order of the buckets, not of the ids: that deadlocks.
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
        // What was made is to stay.
        self.connection.execute(if insert { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
    }
}

/// What came of a way.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// Times per second, the median of the turns.
    pub(crate) rate: f64,
    /// Processor time of server and client for each time: on a shared machine, the steadier figure.
    pub(crate) micros: f64,
}

/// A database with buckets.
pub(crate) struct Place {
    pub(crate) options: MySqlConnectOptions,
    locks: Locks,
    server: u32,
}

impl Place {
    pub(crate) async fn new(server: &SqlServer, database: &Database) -> Self {
        let options: MySqlConnectOptions = database.url().parse().unwrap();
        let options = options.disable_statement_logging();
        create_tables(&mut options.connect().await.unwrap()).await.unwrap();
        Provision::new(options.clone(), BUCKETS).run(|_| ()).await.unwrap();
        let settings = Options { buckets: BUCKETS, max_connections: 64, ..Options::default() };
        let locks = Locks::mysql(options.clone(), &settings).await.unwrap();
        Self { options, locks, server: server.pid().unwrap() }
    }

    /// Of the server and of this process, in seconds.
    fn processor_time(&self) -> f64 {
        [self.server, std::process::id()].into_iter().map(processor_time).sum()
    }

    /// What came of each way, in their order.
    pub(crate) async fn compare(&self, tasks: usize, ways: &[(Way, Wish)]) -> Vec<Measured> {
        let mut crews = Vec::new();
        for (way, wish) in ways {
            let mut crew = Vec::new();
            for _ in 0..tasks {
                crew.push(Worker::new(self, *way, *wish).await);
            }
            // Connections are opened and statements prepared before anything is measured.
            let (crew, _) = turn(crew, TURN / 5).await;
            crews.push((crew, Vec::new(), 0.0));
        }
        for _ in 0..TURNS {
            for (crew, rates, processor) in &mut crews {
                let before = self.processor_time();
                let (back, rate) = turn(std::mem::take(crew), TURN).await;
                *processor += (self.processor_time() - before) / rate / TURN.as_secs_f64();
                *crew = back;
                rates.push(rate);
            }
        }
        let measured =
            |(_, rates, processor)| Measured { rate: median(rates), micros: processor * 1e6 / TURNS as f64 };
        crews.into_iter().map(measured).collect()
    }
}

/// Lets all work for a while, and returns them with how often they were done per second.
async fn turn(crew: Vec<Worker>, time: Duration) -> (Vec<Worker>, f64) {
    let started = Instant::now();
    let work = crew.into_iter().map(|mut worker| {
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
    // In hundredths of a second, by the program and by the kernel for it.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

pub(crate) fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

//! Transactions per second through `db::Db`, compared with the plain driver on the same server.
//!
//! A transaction inserts two rows, like one that writes a state and an event. The two sides alternate, so that a busy machine affects
//! both alike. The result is the median of the rounds.

#![expect(clippy::unwrap_used, reason = "benchmarks may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use db::{Config, Db, DbUrl, on};
use futures::future::join_all;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Executor, MySqlPool, SqlitePool};
use testkit::bench::Report;
use testkit::{Flavour, Folder, SqlServer};

const TABLE: &str = "CREATE TABLE item (id INTEGER PRIMARY KEY NOT NULL, body VARCHAR(200) NOT NULL)";
const INSERT: &str = "INSERT INTO item (id, body) VALUES (?, ?)";
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 7;
const CONNECTIONS: u32 = 16;

#[tokio::main]
async fn main() {
    let mut report = Report::new("db").columns(["store", "tasks", "ours tx/s", "plain tx/s", "ratio"]);
    let mut sqlite_ratio = 0.0;
    for tasks in [1, 16, 64] {
        let ratio = sqlite(tasks, &mut report).await;
        if tasks == 16 {
            sqlite_ratio = ratio;
        }
    }
    match SqlServer::builder(Flavour::Mariadb).durable().start().await {
        Ok(server) => {
            for tasks in [1, 16, 64] {
                let ratio = mariadb(&server, tasks, &mut report).await;
                report.measure(&format!("mariadb_{tasks}"), ratio);
            }
        }
        Err(error) => eprintln!("Skipped MariaDB: {error}"),
    }
    report.finish(sqlite_ratio).unwrap();
}

/// Compares with one pool of writing connections, which wait in SQLite's own busy handler.
async fn sqlite(tasks: usize, report: &mut Report) -> f64 {
    let folder = Folder::on_disk().unwrap();
    let db = Db::open(&config(DbUrl::sqlite(folder.path().join("ours.db")))).await.unwrap();
    create_table(&db).await;
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("plain.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30));
    let plain: SqlitePool =
        SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await.unwrap();
    plain.execute(TABLE).await.unwrap();
    let ours = async |id: i64| through_db(&db, id).await;
    let theirs = async |id: i64| {
        let mut tx = plain.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query(INSERT).bind(id).bind("state").execute(&mut *tx).await.unwrap();
        sqlx::query(INSERT).bind(id + 1).bind("event").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    };
    compare("SQLite", tasks, &ours, &theirs, report).await
}

/// Compares with the driver's pool and its defaults.
async fn mariadb(server: &SqlServer, tasks: usize, report: &mut Report) -> f64 {
    let (ours, theirs) = (server.database().await, server.database().await);
    let db = Db::open(&config(DbUrl::MySql(ours.url().parse().unwrap()))).await.unwrap();
    create_table(&db).await;
    let plain: MySqlPool =
        MySqlPoolOptions::new().max_connections(CONNECTIONS).connect(theirs.url()).await.unwrap();
    plain.execute(TABLE).await.unwrap();
    let ours = async |id: i64| through_db(&db, id).await;
    let theirs = async |id: i64| {
        let mut tx = plain.begin().await.unwrap();
        sqlx::query(INSERT).bind(id).bind("state").execute(&mut *tx).await.unwrap();
        sqlx::query(INSERT).bind(id + 1).bind("event").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    };
    compare("MariaDB", tasks, &ours, &theirs, report).await
}

fn config(url: DbUrl) -> Config {
    Config { url, max_connections: CONNECTIONS, acquire_timeout: Duration::from_secs(30), migrate: false }
}

async fn create_table(db: &Db) {
    let mut tx = db.begin().await.unwrap();
    on!(tx, raw => { raw.execute(TABLE).await.unwrap(); });
    tx.commit().await.unwrap();
}

async fn through_db(db: &Db, id: i64) {
    let mut tx = db.begin().await.unwrap();
    on!(tx, raw => {
        sqlx::query(INSERT).bind(id).bind("state").execute(&mut *raw).await.unwrap();
        sqlx::query(INSERT).bind(id + 1).bind("event").execute(&mut *raw).await.unwrap();
    });
    tx.commit().await.unwrap();
}

async fn compare(
    store: &str,
    tasks: usize,
    ours: &impl AsyncFn(i64),
    plain: &impl AsyncFn(i64),
    report: &mut Report,
) -> f64 {
    let (ids_of_ours, ids_of_plain) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
    let mut rates = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        rates.0.push(round(tasks, ours, &ids_of_ours).await);
        rates.1.push(round(tasks, plain, &ids_of_plain).await);
    }
    let (ours, plain) = (median(rates.0), median(rates.1));
    report.row([
        store.to_owned(),
        tasks.to_string(),
        format!("{ours:.0}"),
        format!("{plain:.0}"),
        format!("{:.2}", ours / plain),
    ]);
    ours / plain
}

/// Measures the transactions per second of `tasks` concurrent tasks.
async fn round(tasks: usize, transaction: &impl AsyncFn(i64), ids: &AtomicU64) -> f64 {
    let started = Instant::now();
    let work = (0..tasks).map(async |_| {
        let mut done = 0_u32;
        while started.elapsed() < ROUND {
            let id = ids.fetch_add(2, Ordering::Relaxed);
            transaction(i64::try_from(id).unwrap()).await;
            done += 1;
        }
        done
    });
    let done: u32 = join_all(work).await.into_iter().sum();
    f64::from(done) / started.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

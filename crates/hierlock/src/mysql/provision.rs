//! Making the rows, ahead of all locking.
//!
//! In chunks, each a statement and a transaction of its own. Before a chunk is made its rows are counted, so a run that was
//! killed is taken up by the next one, which leaves out what is there and finds every gap; there is no record of progress that
//! could be wrong. Rows that exist are not touched, so they can be locked meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection, Executor, Row as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::schema::{SPACE_ID, recorded};
use super::{BRIEF, connect, server};
use crate::error::bounded;
use crate::space::HASH;
use crate::{Error, Level, Retry, Space};

/// Large enough for the servers to be at their best, small enough to wait for.
const CHUNK: u32 = 100_000;
const CONNECTIONS: usize = 2;
/// How long a chunk may take: far longer than it does on a server that answers.
const PER_CHUNK: Duration = Duration::from_secs(300);

/// Makes the buckets that a database lacks.
#[derive(Clone, Debug)]
pub struct Provision {
    database: MySqlConnectOptions,
    buckets: u32,
    rows_per_second: Option<u32>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows that there are to be.
    pub total: u64,
    /// Rows that are known to be there.
    pub present: u64,
    /// Those of them that this run has made.
    pub made: u64,
    pub elapsed: Duration,
}

/// What a database has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub space: Space,
    /// Whether a run has come to its end.
    pub complete: bool,
    pub levels: Vec<LevelStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelStatus {
    pub level: Level,
    pub present: u64,
    pub missing: u64,
    pub first_missing: Option<u32>,
}

#[derive(Clone, Debug)]
struct Chunk {
    level: Level,
    buckets: Range<u32>,
}

impl Provision {
    /// Of all levels, so many buckets each.
    pub const fn new(database: MySqlConnectOptions, buckets: u32) -> Self {
        Self { database, buckets, rows_per_second: None }
    }

    /// Makes at most so many rows per second, to be gentle with a server that is in use.
    #[must_use]
    pub const fn throttled(mut self, rows_per_second: u32) -> Self {
        self.rows_per_second = Some(if rows_per_second == 0 { 1 } else { rows_per_second });
        self
    }

    /// Records the number of buckets, makes what is missing, and says how far it is whenever it is further.
    ///
    /// Refuses to take buckets away, and to add some while anybody else is connected to the database. To see who is, the user
    /// needs the privilege PROCESS: without it the server shows those of the same user only.
    pub async fn run(&self, mut report: impl FnMut(Progress)) -> Result<Progress, Error> {
        let mut connection = connect(self.database.clone()).await?;
        bounded(BRIEF, record(&mut connection, self.buckets)).await?;
        let total = Space::new(self.buckets).rows();
        let began = Instant::now();
        let size = self.rows_per_second.map_or(CHUNK, |rate| (rate / 4).clamp(100, CHUNK));
        let shared = Arc::new(Shared {
            chunks: chunks(self.buckets, size),
            next: AtomicU64::new(0),
            made: AtomicU64::new(0),
            began,
            rows_per_second: self.rows_per_second,
        });
        let (tell, mut told) = mpsc::unbounded_channel();
        let mut workers = JoinSet::new();
        for _ in 0..CONNECTIONS {
            workers.spawn(work(self.database.clone(), shared.clone(), tell.clone()));
        }
        drop(tell);
        let mut progress = Progress { total, ..Progress::default() };
        report(progress);
        loop {
            tokio::select! {
                Some(Made { present, made }) = told.recv() => {
                    progress.present += present + made;
                    progress.made += made;
                    progress.elapsed = began.elapsed();
                    report(progress);
                }
                // One that fails ends the others.
                Some(worker) = workers.join_next() => {
                    worker.map_err(|stopped| Error::Statement(sqlx::Error::AnyDriverError(stopped.into())))??;
                }
                else => break,
            }
        }
        let complete = sqlx::query("UPDATE hier_lock_space SET complete = TRUE WHERE id = ? AND buckets = ?")
            .bind(SPACE_ID)
            .bind(self.buckets);
        bounded(BRIEF, complete.execute(&mut connection)).await?;
        connection.close().await?;
        Ok(progress)
    }

    /// Whether a run for this many buckets has come to its end.
    pub async fn is_complete(&self) -> Result<bool, Error> {
        let mut connection = connect(self.database.clone()).await?;
        let found = bounded(BRIEF, recorded(&mut connection)).await?;
        connection.close().await?;
        Ok(found.is_some_and(|(space, complete)| complete && space == Space::new(self.buckets)))
    }

    /// Counts what is there. None if nothing was ever recorded.
    pub async fn status(database: MySqlConnectOptions) -> Result<Option<Status>, Error> {
        let mut connection = connect(database).await?;
        let Some((space, complete)) = bounded(BRIEF, recorded(&mut connection)).await? else {
            return Ok(None);
        };
        let mut levels =
            Level::ALL.map(|level| LevelStatus { level, present: 0, missing: 0, first_missing: None });
        for chunk in chunks(space.buckets, CHUNK) {
            let status = &mut levels[chunk.level as usize];
            let (present, wanted) = (bounded(PER_CHUNK, count(&mut connection, &chunk)).await?, chunk.len());
            status.present += present;
            status.missing += wanted.saturating_sub(present);
            if present < wanted && status.first_missing.is_none() {
                status.first_missing = bounded(PER_CHUNK, first_missing(&mut connection, &chunk)).await?;
            }
        }
        connection.close().await?;
        Ok(Some(Status { space, complete, levels: levels.to_vec() }))
    }
}

impl Status {
    pub fn missing(&self) -> u64 {
        self.levels.iter().map(|level| level.missing).sum()
    }
}

impl Chunk {
    const fn len(&self) -> u64 {
        (self.buckets.end - self.buckets.start) as u64
    }
}

fn chunks(buckets: u32, size: u32) -> Vec<Chunk> {
    let of_level = |level| {
        (0..buckets).step_by(size as usize).map(move |start| {
            let end = start.saturating_add(size).min(buckets);
            Chunk { level, buckets: start..end }
        })
    };
    Level::ALL.into_iter().flat_map(of_level).collect()
}

struct Shared {
    chunks: Vec<Chunk>,
    next: AtomicU64,
    made: AtomicU64,
    began: Instant,
    rows_per_second: Option<u32>,
}

/// What came of a chunk.
struct Made {
    present: u64,
    made: u64,
}

impl Shared {
    fn next(&self) -> Option<&Chunk> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.chunks.get(usize::try_from(next).ok()?)
    }

    /// Rests until as much time has passed as the rows so far may take.
    async fn pace(&self) {
        if let Some(rate) = self.rows_per_second {
            let due =
                Duration::from_secs(1).mul_f64(self.made.load(Ordering::Relaxed) as f64 / f64::from(rate));
            tokio::time::sleep_until(self.began + due).await;
        }
    }
}

async fn work(
    database: MySqlConnectOptions,
    shared: Arc<Shared>,
    tell: mpsc::UnboundedSender<Made>,
) -> Result<(), Error> {
    let mut connection = connect(database).await?;
    let maker = bounded(BRIEF, Maker::new(&mut connection)).await?;
    while let Some(chunk) = shared.next() {
        shared.pace().await;
        let made = complete(&mut connection, maker, chunk).await?;
        shared.made.fetch_add(made.made, Ordering::Relaxed);
        // Nobody listens to a run that was given up.
        if tell.send(made).is_err() {
            break;
        }
    }
    Ok(connection.close().await?)
}

/// Makes what a chunk lacks. Two who do so at the same time may deadlock, and one of them has to try again.
async fn complete(connection: &mut MySqlConnection, maker: Maker, chunk: &Chunk) -> Result<Made, Error> {
    let mut failures = 0;
    loop {
        let error = match bounded(PER_CHUNK, attempt(connection, maker, chunk)).await {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        failures += 1;
        match Retry::default().again_after(failures, &error) {
            Some(wait) if !matches!(error, Error::Unreachable(_)) => tokio::time::sleep(wait).await,
            _ => return Err(error),
        }
    }
}

async fn attempt(connection: &mut MySqlConnection, maker: Maker, chunk: &Chunk) -> Result<Made, Error> {
    let present = count(connection, chunk).await?;
    if present == chunk.len() {
        return Ok(Made { present, made: 0 });
    }
    let made = connection.execute(AssertSqlSafe(maker.text(chunk, present > 0))).await?.rows_affected();
    if present + made == chunk.len() {
        return Ok(Made { present, made });
    }
    // Somebody else is at it, too.
    let missing = Error::MissingBucket(crate::Row { level: chunk.level, bucket: chunk.buckets.start });
    if count(connection, chunk).await? == chunk.len() {
        Ok(Made { present: chunk.len() - made, made })
    } else {
        Err(missing)
    }
}

/// How rows are made by a server: each has a quick way of its own to count.
#[derive(Clone, Copy, Debug)]
enum Maker {
    /// The tables `seq_1_to_9`, which exist by being named.
    MariaDb,
    /// A query that refers to itself.
    MySql,
}

impl Maker {
    async fn new(connection: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        if server::is_mariadb(connection).await? {
            return Ok(Self::MariaDb);
        }
        connection
            .execute(AssertSqlSafe(format!("SET SESSION cte_max_recursion_depth = {}", CHUNK + 1)))
            .await?;
        Ok(Self::MySql)
    }

    /// Inserts the rows of a chunk. Where some are there already they are left out, not ignored: ignoring them would lock
    /// them, and wait for whoever has them locked.
    fn text(self, chunk: &Chunk, leave_out: bool) -> String {
        let (level, first, last) = (chunk.level as u8, chunk.buckets.start, chunk.buckets.end - 1);
        let absent = if leave_out {
            format!(
                " WHERE NOT EXISTS (SELECT 1 FROM hier_lock_buckets b WHERE b.level = {level} AND b.bucket = n.seq)"
            )
        } else {
            String::new()
        };
        let insert = "INSERT IGNORE INTO hier_lock_buckets (level, bucket)";
        match self {
            Self::MariaDb => format!("{insert} SELECT {level}, n.seq FROM seq_{first}_to_{last} n{absent}"),
            Self::MySql => format!(
                "{insert} WITH RECURSIVE n (seq) AS (SELECT {first} UNION ALL SELECT seq + 1 FROM n WHERE seq < {last}) \
                 SELECT {level}, n.seq FROM n{absent}"
            ),
        }
    }
}

async fn count(connection: &mut MySqlConnection, chunk: &Chunk) -> Result<u64, sqlx::Error> {
    const COUNT: &str =
        "SELECT COUNT(*) FROM hier_lock_buckets WHERE level = ? AND bucket >= ? AND bucket < ?";
    let Chunk { level, buckets } = chunk;
    let count: i64 = sqlx::query_scalar(COUNT)
        .bind(*level as u8)
        .bind(buckets.start)
        .bind(buckets.end)
        .fetch_one(connection)
        .await?;
    Ok(count.unsigned_abs())
}

async fn first_missing(connection: &mut MySqlConnection, chunk: &Chunk) -> Result<Option<u32>, sqlx::Error> {
    const READ: &str =
        "SELECT bucket FROM hier_lock_buckets WHERE level = ? AND bucket >= ? AND bucket < ? ORDER BY bucket";
    let Chunk { level, buckets } = chunk;
    let found: Vec<i32> = sqlx::query_scalar(READ)
        .bind(*level as u8)
        .bind(buckets.start)
        .bind(buckets.end)
        .fetch_all(connection)
        .await?;
    let mut found = found.into_iter().map(i32::unsigned_abs);
    Ok(buckets.clone().find(|bucket| found.next() != Some(*bucket)))
}

/// Records the number of buckets, if it is the first or a larger one and nobody goes by the smaller one.
async fn record(connection: &mut MySqlConnection, buckets: u32) -> Result<(), Error> {
    const FIRST: &str = "INSERT INTO hier_lock_space (id, buckets, hash, complete, last_token)
        VALUES (?, ?, ?, FALSE, 0) ON DUPLICATE KEY UPDATE id = hier_lock_space.id";
    const LOCKED: &str = "SELECT buckets, hash FROM hier_lock_space WHERE id = ? FOR UPDATE";
    const GROW: &str = "UPDATE hier_lock_space SET buckets = ?, complete = FALSE WHERE id = ?";
    let mut tx = connection.begin().await?;
    sqlx::query(FIRST).bind(SPACE_ID).bind(buckets).bind(HASH).execute(&mut *tx).await?;
    let row = sqlx::query(LOCKED).bind(SPACE_ID).fetch_one(&mut *tx).await?;
    let found: i32 = row.try_get(0)?;
    let recorded = Space { buckets: found.unsigned_abs(), hash: row.try_get(1)? };
    let ours = Space::new(buckets);
    if recorded.hash != ours.hash {
        return Err(Error::OtherSpace { recorded, ours });
    }
    if buckets < recorded.buckets {
        return Err(Error::Shrinks { recorded, wanted: buckets });
    }
    if buckets > recorded.buckets {
        // A process that starts now waits for us to commit, and is seen here while it waits.
        let others = others(&mut tx).await?;
        if !others.is_empty() {
            return Err(Error::InUse(others));
        }
        sqlx::query(GROW).bind(buckets).bind(SPACE_ID).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

/// Who else is connected to the database.
async fn others(connection: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
    const OTHERS: &str = "SELECT CONCAT(user, '@', host) FROM information_schema.processlist
        WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY id";
    sqlx::query_scalar(OTHERS).fetch_all(connection).await
}

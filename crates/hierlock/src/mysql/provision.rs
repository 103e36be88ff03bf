//! Creates the rows before they can be locked.
//!
//! It works in chunks, each one statement and one transaction. The rows of a chunk are counted first, so the next run resumes after a
//! kill: it skips existing rows and finds every gap. There is no progress record that could be wrong. Existing rows are not touched, so
//! they can be locked in the meantime.

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
use super::{SHORT_TIMEOUT, connect, server};
use crate::bucket_space::HASH;
use crate::error::bounded;
use crate::{BucketSpace, Error, Level, Retry};

/// Large enough for the best insert rate, small enough to finish within seconds.
const CHUNK: u32 = 100_000;
const CONNECTIONS: usize = 2;
/// The time limit for a chunk: far more than a responsive server needs.
const PER_CHUNK: Duration = Duration::from_secs(300);

/// Creates the buckets that are missing in a database.
#[derive(Clone, Debug)]
pub struct Provisioner {
    database: MySqlConnectOptions,
    buckets: u32,
    rows_per_second: Option<u32>,
}

/// The progress of a [`Provisioner`] run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProvisionProgress {
    /// The number of rows when complete.
    pub total: u64,
    /// Rows that are known to exist.
    pub present: u64,
    /// Rows that this run has created.
    pub created: u64,
    pub elapsed: Duration,
}

/// The state of the buckets in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionStatus {
    pub space: BucketSpace,
    /// Whether a run has finished.
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

impl Provisioner {
    /// Prepares a run that creates `buckets` buckets per level.
    pub const fn new(database: MySqlConnectOptions, buckets: u32) -> Self {
        Self { database, buckets, rows_per_second: None }
    }

    /// Limits the rate of created rows, to reduce the load on a server in use.
    #[must_use]
    pub const fn throttled(mut self, rows_per_second: u32) -> Self {
        self.rows_per_second = Some(if rows_per_second == 0 { 1 } else { rows_per_second });
        self
    }

    /// Records the number of buckets and creates the missing ones. Calls `report` at the start and after each chunk.
    ///
    /// Fails if this would remove buckets, or add buckets while other clients are connected to the database. To see all clients, the
    /// database user needs the PROCESS privilege: without it the server shows only connections of the same user.
    pub async fn run(&self, mut report: impl FnMut(ProvisionProgress)) -> Result<ProvisionProgress, Error> {
        let mut connection = connect(self.database.clone()).await?;
        bounded(SHORT_TIMEOUT, record(&mut connection, self.buckets)).await?;
        let total = BucketSpace::new(self.buckets).rows();
        let began = Instant::now();
        let size = self.rows_per_second.map_or(CHUNK, |rate| (rate / 4).clamp(100, CHUNK));
        let shared = Arc::new(Shared {
            chunks: chunks(self.buckets, size),
            next: AtomicU64::new(0),
            created: AtomicU64::new(0),
            began,
            rows_per_second: self.rows_per_second,
        });
        let (sender, mut results) = mpsc::unbounded_channel();
        let mut workers = JoinSet::new();
        for _ in 0..CONNECTIONS {
            workers.spawn(work(self.database.clone(), shared.clone(), sender.clone()));
        }
        drop(sender);
        let mut progress = ProvisionProgress { total, ..ProvisionProgress::default() };
        report(progress);
        loop {
            tokio::select! {
                Some(ChunkResult { present, created }) = results.recv() => {
                    progress.present += present + created;
                    progress.created += created;
                    progress.elapsed = began.elapsed();
                    report(progress);
                }
                // The first failure ends the run.
                Some(worker) = workers.join_next() => {
                    worker.map_err(|stopped| Error::Statement(sqlx::Error::AnyDriverError(stopped.into())))??;
                }
                else => break,
            }
        }
        let complete = sqlx::query("UPDATE hier_lock_space SET complete = TRUE WHERE id = ? AND buckets = ?")
            .bind(SPACE_ID)
            .bind(self.buckets);
        bounded(SHORT_TIMEOUT, complete.execute(&mut connection)).await?;
        connection.close().await?;
        Ok(progress)
    }

    /// Returns whether a run for this number of buckets has finished.
    pub async fn is_complete(&self) -> Result<bool, Error> {
        let mut connection = connect(self.database.clone()).await?;
        let found = bounded(SHORT_TIMEOUT, recorded(&mut connection)).await?;
        connection.close().await?;
        Ok(found.is_some_and(|(space, complete)| complete && space == BucketSpace::new(self.buckets)))
    }

    /// Counts the existing rows. None if no bucket space is recorded.
    pub async fn status(database: MySqlConnectOptions) -> Result<Option<ProvisionStatus>, Error> {
        let mut connection = connect(database).await?;
        let Some((space, complete)) = bounded(SHORT_TIMEOUT, recorded(&mut connection)).await? else {
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
        Ok(Some(ProvisionStatus { space, complete, levels: levels.to_vec() }))
    }
}

impl ProvisionStatus {
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
    created: AtomicU64,
    began: Instant,
    rows_per_second: Option<u32>,
}

/// The result of a chunk: the rows that existed before and those created.
struct ChunkResult {
    present: u64,
    created: u64,
}

impl Shared {
    fn next(&self) -> Option<&Chunk> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.chunks.get(usize::try_from(next).ok()?)
    }

    /// Sleeps until the rows created so far are within the rate limit.
    async fn throttle(&self) {
        if let Some(rate) = self.rows_per_second {
            let due =
                Duration::from_secs(1).mul_f64(self.created.load(Ordering::Relaxed) as f64 / f64::from(rate));
            tokio::time::sleep_until(self.began + due).await;
        }
    }
}

async fn work(
    database: MySqlConnectOptions,
    shared: Arc<Shared>,
    sender: mpsc::UnboundedSender<ChunkResult>,
) -> Result<(), Error> {
    let mut connection = connect(database).await?;
    let generator = bounded(SHORT_TIMEOUT, RowGenerator::new(&mut connection)).await?;
    while let Some(chunk) = shared.next() {
        shared.throttle().await;
        let created = complete(&mut connection, generator, chunk).await?;
        shared.created.fetch_add(created.created, Ordering::Relaxed);
        // The receiver is gone if the run was cancelled.
        if sender.send(created).is_err() {
            break;
        }
    }
    Ok(connection.close().await?)
}

/// Creates the missing rows of a chunk. Retries on a deadlock with a concurrent run.
async fn complete(
    connection: &mut MySqlConnection,
    generator: RowGenerator,
    chunk: &Chunk,
) -> Result<ChunkResult, Error> {
    let mut failures = 0;
    loop {
        let error = match bounded(PER_CHUNK, attempt(connection, generator, chunk)).await {
            Ok(created) => return Ok(created),
            Err(error) => error,
        };
        failures += 1;
        match Retry::default().next_delay(failures, &error) {
            Some(wait) if !matches!(error, Error::Unreachable(_)) => tokio::time::sleep(wait).await,
            _ => return Err(error),
        }
    }
}

async fn attempt(
    connection: &mut MySqlConnection,
    generator: RowGenerator,
    chunk: &Chunk,
) -> Result<ChunkResult, Error> {
    let present = count(connection, chunk).await?;
    if present == chunk.len() {
        return Ok(ChunkResult { present, created: 0 });
    }
    let created =
        connection.execute(AssertSqlSafe(generator.text(chunk, present > 0))).await?.rows_affected();
    if present + created == chunk.len() {
        return Ok(ChunkResult { present, created });
    }
    // A concurrent run may have created the others.
    let missing = Error::MissingBucket(crate::Row { level: chunk.level, bucket: chunk.buckets.start });
    if count(connection, chunk).await? == chunk.len() {
        Ok(ChunkResult { present: chunk.len() - created, created })
    } else {
        Err(missing)
    }
}

/// Generates the rows of a chunk. Each server has its own fast way to produce a sequence of numbers.
#[derive(Clone, Copy, Debug)]
enum RowGenerator {
    /// The sequence engine: virtual tables such as `seq_1_to_9`.
    MariaDb,
    /// A recursive common table expression.
    MySql,
}

impl RowGenerator {
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

    /// Returns the statement that inserts the rows of a chunk. Existing rows are filtered out first: leaving them to `INSERT IGNORE`
    /// would lock them, and wait for their holders.
    fn text(self, chunk: &Chunk, skip_existing: bool) -> String {
        let (level, first, last) = (chunk.level as u8, chunk.buckets.start, chunk.buckets.end - 1);
        let absent = if skip_existing {
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

/// Records the number of buckets if it is the first one, or a larger one and no other client is connected.
async fn record(connection: &mut MySqlConnection, buckets: u32) -> Result<(), Error> {
    const FIRST: &str = "INSERT INTO hier_lock_space (id, buckets, hash, complete, last_token)
        VALUES (?, ?, ?, FALSE, 0) ON DUPLICATE KEY UPDATE id = hier_lock_space.id";
    const LOCKED: &str = "SELECT buckets, hash FROM hier_lock_space WHERE id = ? FOR UPDATE";
    const GROW: &str = "UPDATE hier_lock_space SET buckets = ?, complete = FALSE WHERE id = ?";
    let mut tx = connection.begin().await?;
    sqlx::query(FIRST).bind(SPACE_ID).bind(buckets).bind(HASH).execute(&mut *tx).await?;
    let row = sqlx::query(LOCKED).bind(SPACE_ID).fetch_one(&mut *tx).await?;
    let found: i32 = row.try_get(0)?;
    let recorded = BucketSpace { buckets: found.unsigned_abs(), hash: row.try_get(1)? };
    let ours = BucketSpace::new(buckets);
    if recorded.hash != ours.hash {
        return Err(Error::BucketSpaceMismatch { recorded, ours });
    }
    if buckets < recorded.buckets {
        return Err(Error::CannotShrink { recorded, wanted: buckets });
    }
    if buckets > recorded.buckets {
        // A process that starts now waits for our commit, and is visible here while it waits.
        let others = other_connections(&mut tx).await?;
        if !others.is_empty() {
            return Err(Error::InUse(others));
        }
        sqlx::query(GROW).bind(buckets).bind(SPACE_ID).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

/// Returns the other connections to the database.
async fn other_connections(connection: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
    const OTHERS: &str = "SELECT CONCAT(user, '@', host) FROM information_schema.processlist
        WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY id";
    sqlx::query_scalar(OTHERS).fetch_all(connection).await
}

//! Opening the store.

pub(crate) mod mysql;

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use hierlock::{LockManager, Target};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySql, Pool, SqlSafeStr, Sqlite};
use tokio::time::{Instant, timeout};

use crate::config::lock_path;
use crate::corrupt::UnreadableRows;
use crate::error::{bounded, timed_out};
use crate::health::StaleConnections;
use crate::lock_queue::QueuedTransaction;
use crate::pooled::{Backend, PooledConnection};
use crate::script::Script;
use crate::tx::AnyConnection;
use crate::{Config, Conn, DbFuture, DbUrl, Error, Tx, Value};

/// Exceeds the number of distinct statement texts, so a connection never prepares one twice.
const STATEMENT_CACHE: usize = 1024;
const BEGIN_SQLITE: &str = "BEGIN IMMEDIATE";
const BEGIN_MYSQL: &str = "START TRANSACTION";
/// How long a SQLite writer waits for another writer before it fails with [`Error::Busy`].
const SQLITE_BUSY: Duration = Duration::from_secs(10);
/// How long SQLite may take to begin, commit or roll back. Generous, because a slow disk is not a failed one.
const SQLITE_LIMIT: Duration = Duration::from_secs(60);

/// The SQL dialect of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    MySql,
}

impl Dialect {
    /// Returns the one of the two texts that is in this dialect.
    pub const fn pick(self, sqlite: &'static str, mysql: &'static str) -> &'static str {
        match self {
            Self::Sqlite => sqlite,
            Self::MySql => mysql,
        }
    }

    /// Returns the SQL expression for the store's clock in milliseconds. It is constant within a statement.
    pub const fn now(self) -> &'static str {
        self.pick(
            "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
        )
    }
}

/// The open SQL store. Cheap to clone; clones share the connection pools.
#[derive(Clone, Debug)]
pub struct Db {
    pub(crate) pools: Pools,
    /// The time limit for all operations except the caller's own statements.
    pub(crate) limit: Duration,
    stale: StaleConnections,
    pub(crate) unreadable: UnreadableRows,
}

#[derive(Clone, Debug)]
pub(crate) enum Pools {
    Sqlite {
        /// A single connection: SQLite has one writer at a time, and queueing here beats waiting in its busy handler.
        writer: SqlitePool,
        readers: SqlitePool,
        /// Held while this process owns the file. None if the store was opened read-only.
        _lock: Option<Arc<File>>,
    },
    MySql(Arc<mysql::Server>),
}

impl Db {
    fn new(pools: Pools, limit: Duration, stale: StaleConnections) -> Self {
        Self { pools, limit, stale, unreadable: UnreadableRows::default() }
    }

    /// Opens the store and checks that it answers.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let stale = StaleConnections::default();
        let (pools, limit) = match &config.url {
            DbUrl::Sqlite(path) => (open_sqlite(path, config).await?, SQLITE_LIMIT),
            DbUrl::MySql(url) => {
                let server = mysql::open(url, config, &stale).await?;
                (Pools::MySql(Arc::new(server)), config.acquire_timeout)
            }
        };
        Ok(Self::new(pools, limit, stale))
    }

    /// Opens the store read-only. On SQLite this works while another process owns the file.
    pub async fn open_read_only(config: &Config) -> Result<Self, Error> {
        let DbUrl::Sqlite(path) = &config.url else { return Self::open(config).await };
        let readers = sqlite_readers(sqlite_options(path), config).await?;
        let pools = Pools::Sqlite { writer: readers.clone(), readers, _lock: None };
        Ok(Self::new(pools, SQLITE_LIMIT, StaleConnections::default()))
    }

    pub const fn dialect(&self) -> Dialect {
        match self.pools {
            Pools::Sqlite { .. } => Dialect::Sqlite,
            Pools::MySql(_) => Dialect::MySql,
        }
    }

    /// Begins a transaction that may write.
    pub fn begin(&self) -> DbFuture<'_, Tx> {
        Box::pin(async move {
            let connection = match &self.pools {
                // IMMEDIATE: a plain BEGIN takes the write lock at the first write, where SQLite fails instead of waiting.
                Pools::Sqlite { writer, .. } => AnyConnection::Sqlite(
                    self.acquire(writer).await?.begin(BEGIN_SQLITE.into_sql_str()).await?.0,
                ),
                Pools::MySql(server) => {
                    let connection = self.acquire(&server.pool).await?;
                    AnyConnection::MySql(connection.begin(BEGIN_MYSQL.into_sql_str()).await?.0)
                }
            };
            Ok(Tx::new(connection))
        })
    }

    /// Begins a transaction that may write and inserts rows, in one round trip. Returns how many rows were inserted: fewer than given if
    /// `head` is an `INSERT IGNORE`. `head` is the statement up to `VALUES` and must never contain user input.
    pub async fn begin_with_insert<'a, const N: usize>(
        &self,
        head: &str,
        rows: impl IntoIterator<Item = [Value<'a>; N]>,
    ) -> Result<(Tx, u64), Error> {
        let mut script = Script::default();
        script.insert(self.dialect(), head, rows, "");
        self.begin_with_script(script).await
    }

    fn begin_with_script(&self, script: Script) -> DbFuture<'_, (Tx, u64)> {
        Box::pin(async move {
            match &self.pools {
                // SQLite has no server and so no round trip to save.
                Pools::Sqlite { .. } => {
                    let mut tx = self.begin().await?;
                    let text = script.ending_with("");
                    let inserted =
                        if text.is_empty() { 0 } else { tx.connection.execute_in_tx(text).await? };
                    Ok((tx, inserted))
                }
                Pools::MySql(server) => {
                    let text = format!("{BEGIN_MYSQL};\n{}", script.ending_with(""));
                    let text = AssertSqlSafe(text).into_sql_str();
                    let (connection, inserted) = self.acquire(&server.pool).await?.begin(text).await?;
                    Ok((Tx::new(AnyConnection::MySql(connection)), inserted))
                }
            }
        })
    }

    /// Begins a transaction that may write, with the targets locked until it is committed, rolled back or dropped.
    ///
    /// On MySQL the locks are part of the transaction. On SQLite they are taken before it begins: SQLite has one writer, and a
    /// writer that waits for a lock would block the lock's holder from writing.
    ///
    /// Most waiters queue without a connection, in order of arrival (`lock_queue.rs`).
    pub fn begin_locked<'a>(&'a self, locks: &'a LockManager, targets: &'a [Target<'a>]) -> DbFuture<'a, Tx> {
        Box::pin(async move {
            // A lock wait is bounded by the same limit as every other operation: see `row_wait`.
            let locks = &locks.with_timeout(self.limit);
            let wait_timeout = locks.wait_timeout();
            match &self.pools {
                Pools::Sqlite { .. } => {
                    let lock = locks.acquire_all(targets.iter().copied()).await?;
                    Ok(Tx { lock: Some(lock), ..self.begin().await? }.locked(targets))
                }
                Pools::MySql(server) => {
                    let timed_out = || Error::Lock(hierlock::Error::Timeout(wait_timeout));
                    let arrived = Instant::now();
                    let permit = timeout(wait_timeout, server.lock_queue.acquire(targets))
                        .await
                        .map_err(|_| timed_out())?;
                    let locks = locks.with_timeout(wait_timeout.saturating_sub(arrived.elapsed()));
                    let (mut connection, id) = self.acquire(&server.pool).await?.begin_with_id().await?;
                    // An abandoned wait is ended by killing its session, possibly later. So this connection must not be reused.
                    connection.set_in_doubt(true);
                    let locked =
                        locks.lock_in_transaction_with_id(&mut connection, id, targets.iter().copied()).await;
                    drop(permit);
                    locked.map_err(|error| match error {
                        hierlock::Error::Timeout(_) => timed_out(),
                        error => error.into(),
                    })?;
                    connection.set_in_doubt(false);
                    Ok(Tx::new(AnyConnection::MySql(connection)).locked(targets))
                }
            }
        })
    }

    /// Returns the transactions of this process that wait for their turn to lock, without a connection, the longest waiting first. None on
    /// SQLite, where all waits are in the lock manager.
    pub fn queued_for_locks(&self) -> Option<Vec<QueuedTransaction>> {
        match &self.pools {
            Pools::Sqlite { .. } => None,
            Pools::MySql(server) => Some(server.lock_queue.waiting()),
        }
    }

    /// Runs `work` and fails with [`Error::Unreachable`] if it exceeds the store's time limit. Statements have no limit of their own: on a
    /// connection that has gone silent they would wait forever.
    pub async fn bounded<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match tokio::time::timeout(self.limit, work).await {
            Ok(done) => done,
            Err(_) => Err(timed_out(self.limit).into()),
        }
    }

    /// Acquires a connection for reading, outside of any transaction.
    pub fn connection(&self) -> DbFuture<'_, Conn> {
        Box::pin(async move {
            Ok(Conn(match &self.pools {
                Pools::Sqlite { readers, .. } => AnyConnection::Sqlite(self.acquire(readers).await?),
                Pools::MySql(server) => AnyConnection::MySql(self.acquire(&server.pool).await?),
            }))
        })
    }

    fn acquire<'a, D: Backend>(&'a self, pool: &'a Pool<D>) -> DbFuture<'a, PooledConnection<D>> {
        Box::pin(PooledConnection::acquire(pool, self.limit, &self.stale))
    }

    /// Checks that the store answers and takes writes. On MySQL it uses a connection of its own, so an exhausted pool does not fail it.
    pub async fn ping(&self) -> Result<(), Error> {
        match &self.pools {
            Pools::Sqlite { readers, .. } => bounded(self.limit, readers.execute("SELECT 1")).await.map(drop),
            Pools::MySql(server) => server.health.check(self.limit).await,
        }
    }

    /// Returns the name and version of the database server, such as `MariaDB 10.11.6`.
    pub async fn version(&self) -> Result<String, Error> {
        let text = self.dialect().pick("SELECT sqlite_version()", "SELECT VERSION()");
        let version: String = self.read_one(text).await?;
        let name = match self.dialect() {
            Dialect::Sqlite => "SQLite",
            Dialect::MySql if version.contains("MariaDB") => "MariaDB",
            Dialect::MySql => "MySQL",
        };
        Ok(format!("{name} {}", version.split('-').next().unwrap_or_default()))
    }

    /// Returns the time of the store's clock, by which leases are compared.
    pub async fn now(&self) -> Result<Timestamp, Error> {
        let text = format!("SELECT {}", self.dialect().now());
        self.read_one(AssertSqlSafe(text)).await.map(Timestamp::from_millis)
    }

    /// Runs a query without parameters and returns its only value.
    async fn read_one<T>(&self, text: impl SqlSafeStr) -> Result<T, Error>
    where
        T: Send + Unpin,
        for<'r> T:
            sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite> + sqlx::Decode<'r, MySql> + sqlx::Type<MySql>,
    {
        let text = text.into_sql_str();
        let reading = async {
            let mut connection = self.connection().await?;
            Ok::<_, Error>(crate::on!(connection, raw => sqlx::query_scalar(text).fetch_one(raw).await?))
        };
        bounded(self.limit, reading).await
    }

    /// Returns a global variable of the server as text. None on SQLite and for an unknown variable.
    pub async fn server_variable(&self, name: &'static str) -> Result<Option<String>, Error> {
        const SHOW: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name = ?";
        let Pools::MySql(server) = &self.pools else { return Ok(None) };
        let reading = sqlx::query_as::<_, (String, String)>(SHOW).bind(name).fetch_optional(&server.pool);
        Ok(bounded(self.limit, reading).await?.map(|(_, value)| value))
    }

    /// Closes all connections. Waits up to the store's time limit for those in use.
    pub async fn close(&self) {
        let closing = async {
            match &self.pools {
                Pools::Sqlite { writer, readers, .. } => {
                    readers.close().await;
                    // Last, because the last connection to close checkpoints the write-ahead log into the file.
                    writer.close().await;
                }
                Pools::MySql(server) => {
                    server.pool.close().await;
                    server.health.close().await;
                }
            }
        };
        if tokio::time::timeout(self.limit, closing).await.is_err() {
            tracing::warn!("database connections were still in use when the store was closed");
        }
    }
}

async fn open_sqlite(path: &Path, config: &Config) -> Result<Pools, Error> {
    let lock = lock_file(path)?;
    let options = sqlite_options(path).create_if_missing(true);
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(config.acquire_timeout)
        .acquire_slow_threshold(config.acquire_timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_with(options.clone())
        .await?;
    let readers = sqlite_readers(options, config).await?;
    Ok(Pools::Sqlite { writer, readers, _lock: Some(Arc::new(lock)) })
}

fn sqlite_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        // With a write-ahead log, anything less may lose committed transactions in a power failure.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(SQLITE_BUSY)
        .statement_cache_capacity(STATEMENT_CACHE)
        .disable_statement_logging()
}

async fn sqlite_readers(options: SqliteConnectOptions, config: &Config) -> Result<SqlitePool, Error> {
    let pool = SqlitePoolOptions::new()
        .max_connections(config.max_connections)
        .acquire_timeout(config.acquire_timeout)
        .acquire_slow_threshold(config.acquire_timeout)
        .test_before_acquire(false)
        .connect_with(options.create_if_missing(false).read_only(true));
    Ok(pool.await?)
}

/// Takes ownership of the SQLite file for this process. The operating system releases the lock when the process ends.
fn lock_file(data: &Path) -> Result<File, Error> {
    let path = lock_path(data);
    let cannot_use = |path: &Path, source| Error::File { path: path.to_owned(), source };
    if let Some(folder) = data.parent() {
        std::fs::create_dir_all(folder).map_err(|error| cannot_use(folder, error))?;
    }
    let file = File::create(&path).map_err(|error| cannot_use(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(data.to_owned())),
        Err(TryLockError::Error(error)) => Err(cannot_use(&path, error)),
    }
}

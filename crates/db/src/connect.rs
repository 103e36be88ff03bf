//! Opening the store.

pub(crate) mod mysql;

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use hierlock::{Locks, Target};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySql, Pool, SqlSafeStr, Sqlite};
use tokio::time::{Instant, timeout};

use crate::config::lock_path;
use crate::corrupt::Unreadable;
use crate::error::{bounded, silent};
use crate::health::Outdated;
use crate::pooled::{Pooled, Told};
use crate::script::Script;
use crate::tx::Either;
use crate::{Config, Conn, DbFuture, DbUrl, Error, Tx, Value};

/// More than there are statement texts, so that none is ever prepared twice on one connection.
const STATEMENT_CACHE: usize = 1024;
const BEGIN_SQLITE: &str = "BEGIN IMMEDIATE";
const BEGIN_MYSQL: &str = "START TRANSACTION";
/// How long a writer waits for another one on SQLite before it is [`Error::Busy`].
const SQLITE_BUSY: Duration = Duration::from_secs(10);
/// How long SQLite may take to begin, commit or roll back: as long as a disk that is alive may need.
const SQLITE_LIMIT: Duration = Duration::from_secs(60);

/// Which SQL is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    MySql,
}

impl Dialect {
    /// The text in this dialect, of the two that stand side by side.
    pub const fn pick(self, sqlite: &'static str, mysql: &'static str) -> &'static str {
        match self {
            Self::Sqlite => sqlite,
            Self::MySql => mysql,
        }
    }

    /// The store's clock in milliseconds, as an expression; the same throughout a statement.
    pub const fn now(self) -> &'static str {
        self.pick(
            "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
        )
    }
}

/// The open store. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Db {
    pub(crate) pools: Pools,
    /// How long anything that is not a statement of the caller's may take.
    pub(crate) limit: Duration,
    /// Which connections are not used again.
    outdated: Outdated,
    pub(crate) unreadable: Unreadable,
}

#[derive(Clone, Debug)]
pub(crate) enum Pools {
    Sqlite {
        /// One connection: SQLite has one writer at a time, and queueing here beats waiting in its busy handler.
        writer: SqlitePool,
        readers: SqlitePool,
        /// Ours alone while it is held. None when the store was opened to be looked at.
        _lock: Option<Arc<File>>,
    },
    MySql(Arc<mysql::Server>),
}

impl Db {
    fn new(pools: Pools, limit: Duration, outdated: Outdated) -> Self {
        Self { pools, limit, outdated, unreadable: Unreadable::default() }
    }

    /// Opens the store and makes sure that it answers.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let outdated = Outdated::default();
        let (pools, limit) = match &config.url {
            DbUrl::Sqlite(path) => (open_sqlite(path, config).await?, SQLITE_LIMIT),
            DbUrl::MySql(url) => {
                let server = mysql::open(url, config, &outdated).await?;
                (Pools::MySql(Arc::new(server)), config.acquire_timeout)
            }
        };
        Ok(Self::new(pools, limit, outdated))
    }

    /// Opens the store only to look at it, also while another process has it.
    pub async fn open_to_read(config: &Config) -> Result<Self, Error> {
        let DbUrl::Sqlite(path) = &config.url else { return Self::open(config).await };
        let readers = sqlite_readers(sqlite_options(path), config).await?;
        let pools = Pools::Sqlite { writer: readers.clone(), readers, _lock: None };
        Ok(Self::new(pools, SQLITE_LIMIT, Outdated::default()))
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
                // A plain BEGIN takes the write lock at the first write, too late to wait for it: it fails instead.
                Pools::Sqlite { writer, .. } => {
                    Either::Sqlite(self.acquire(writer).await?.begin(BEGIN_SQLITE.into_sql_str()).await?.0)
                }
                Pools::MySql(server) => {
                    let connection = self.acquire(&server.pool).await?;
                    Either::MySql(connection.begin(BEGIN_MYSQL.into_sql_str()).await?.0)
                }
            };
            Ok(Tx::new(connection))
        })
    }

    /// Begins a transaction that may write, and inserts rows with the same message to the server. Says how many were inserted, which is
    /// fewer where `head` lets rows be ignored. `head` is the statement up to `VALUES`, and never made of what somebody sent.
    pub async fn begin_with<'a, const N: usize>(
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
                // Nothing is won where there is no server.
                Pools::Sqlite { .. } => {
                    let mut tx = self.begin().await?;
                    let text = script.ending_with("");
                    let inserted = if text.is_empty() { 0 } else { tx.connection.write(text).await? };
                    Ok((tx, inserted))
                }
                Pools::MySql(server) => {
                    let text = format!("{BEGIN_MYSQL};\n{}", script.ending_with(""));
                    let text = AssertSqlSafe(text).into_sql_str();
                    let (connection, inserted) = self.acquire(&server.pool).await?.begin(text).await?;
                    Ok((Tx::new(Either::MySql(connection)), inserted))
                }
            }
        })
    }

    /// Begins a transaction that may write and holds the locks until it ends, however it does.
    ///
    /// On MySQL the locks are part of the transaction. On SQLite they are taken before it begins: there is one writer, and
    /// one that waits for a lock would keep its holder from writing.
    ///
    /// Most waiters queue without a connection, in the order of their arrival (`turns.rs`).
    pub fn begin_locked<'a>(&'a self, locks: &'a Locks, targets: &'a [Target<'a>]) -> DbFuture<'a, Tx> {
        Box::pin(async move {
            // Longer than for anything else nobody waits for a lock: see `row_wait`.
            let locks = &locks.within(self.limit);
            let patience = locks.patience();
            match &self.pools {
                Pools::Sqlite { .. } => {
                    let lock = locks.acquire_all(targets.iter().copied()).await?;
                    Ok(Tx { lock: Some(lock), ..self.begin().await? }.locked(targets))
                }
                Pools::MySql(server) => {
                    let too_late = || Error::Lock(hierlock::Error::Timeout(patience));
                    let arrived = Instant::now();
                    let turn = timeout(patience, server.turns.next(targets)).await.map_err(|_| too_late())?;
                    let locks = locks.within(patience.saturating_sub(arrived.elapsed()));
                    let (mut connection, number) = self.acquire(&server.pool).await?.begin_numbered().await?;
                    // A wait that is given up is killed with its session, maybe later: nobody else is to have that one.
                    connection.set_in_doubt(true);
                    let locked =
                        locks.lock_in_session(&mut connection, number, targets.iter().copied()).await;
                    drop(turn);
                    locked.map_err(|error| match error {
                        hierlock::Error::Timeout(_) => too_late(),
                        error => error.into(),
                    })?;
                    connection.set_in_doubt(false);
                    Ok(Tx::new(Either::MySql(connection)).locked(targets))
                }
            }
        })
    }

    /// Does something that should not take long, and gives up when it does: a statement by itself waits as long as its caller
    /// does, also on a connection that has fallen silent.
    pub async fn bounded<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match tokio::time::timeout(self.limit, work).await {
            Ok(done) => done,
            Err(_) => Err(silent(self.limit).into()),
        }
    }

    /// A connection for reading.
    pub fn connection(&self) -> DbFuture<'_, Conn> {
        Box::pin(async move {
            Ok(Conn(match &self.pools {
                Pools::Sqlite { readers, .. } => Either::Sqlite(self.acquire(readers).await?),
                Pools::MySql(server) => Either::MySql(self.acquire(&server.pool).await?),
            }))
        })
    }

    fn acquire<'a, D: Told>(&'a self, pool: &'a Pool<D>) -> DbFuture<'a, Pooled<D>> {
        Box::pin(Pooled::acquire(pool, self.limit, &self.outdated))
    }

    /// Fails unless the store answers and takes writes. Does not wait for a connection of the pool on MySQL, where one is kept
    /// for this.
    pub async fn ping(&self) -> Result<(), Error> {
        match &self.pools {
            Pools::Sqlite { readers, .. } => bounded(self.limit, readers.execute("SELECT 1")).await.map(drop),
            Pools::MySql(server) => server.health.check(self.limit).await,
        }
    }

    /// The program behind the connection and its version.
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

    /// The store's clock: the one that leases are compared by.
    pub async fn now(&self) -> Result<Timestamp, Error> {
        let text = format!("SELECT {}", self.dialect().now());
        self.read_one(AssertSqlSafe(text)).await.map(Timestamp::from_millis)
    }

    /// The one value that a question without parameters has for an answer.
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

    /// A setting of the server by its name, as text. None on SQLite and where the server does not know it.
    pub async fn server_variable(&self, name: &'static str) -> Result<Option<String>, Error> {
        const SHOW: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name = ?";
        let Pools::MySql(server) = &self.pools else { return Ok(None) };
        let reading = sqlx::query_as::<_, (String, String)>(SHOW).bind(name).fetch_optional(&server.pool);
        Ok(bounded(self.limit, reading).await?.map(|(_, value)| value))
    }

    /// Closes all connections, waiting a while for those in use.
    pub async fn close(&self) {
        let closing = async {
            match &self.pools {
                Pools::Sqlite { writer, readers, .. } => {
                    readers.close().await;
                    // The last to close folds the write-ahead log into the file.
                    writer.close().await;
                }
                Pools::MySql(server) => {
                    server.pool.close().await;
                    server.health.close().await;
                }
            }
        };
        if tokio::time::timeout(self.limit, closing).await.is_err() {
            tracing::warn!("connections to the database were still in use when it was closed");
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
        // With the write-ahead log, anything less may forget committed transactions when the power fails.
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

/// Takes the data for this process. The lock goes with the process, however it ends.
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

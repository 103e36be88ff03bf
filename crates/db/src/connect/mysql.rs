//! Opening MySQL and MariaDB.

use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tokio::task::AbortHandle;
use url::Url;

use super::STATEMENT_CACHE;
use crate::error::bounded;
use crate::health::{Health, StaleConnections};
use crate::lock_queue::LockQueue;
use crate::pooled::PooledConnection;
use crate::{Config, Error};

/// A connection that was idle for longer than this is pinged before it is handed out.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// A server's connection pool, with the queue, health check and keep-alive around it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) pool: MySqlPool,
    pub(crate) lock_queue: LockQueue,
    pub(crate) health: Health,
    _keep_alive: KeepAlive,
}

/// Parses the URL into the driver's connect options.
pub(crate) fn options(url: &Url) -> Result<MySqlConnectOptions, sqlx::Error> {
    // The driver only accepts `mysql:`.
    let text = url.as_str().replacen("mariadb:", "mysql:", 1);
    let options = MySqlConnectOptions::from_str(&text)?.statement_cache_capacity(STATEMENT_CACHE);
    // Statement texts contain ids, and batches contain values: neither belongs in a log.
    Ok(options.disable_statement_logging())
}

pub(super) async fn open(url: &Url, config: &Config, stale: &StaleConnections) -> Result<Server, Error> {
    let options = options(url)?;
    // The pool reports every failure to connect as a timeout. Connecting once without it reports the cause.
    let first = bounded(config.acquire_timeout, options.connect()).await?;
    // No live transaction is idle for this long: a use case is limited to one `acquire_timeout`.
    let idle_timeout = config.acquire_timeout * 3;
    let session = session_settings(config.acquire_timeout, idle_timeout);
    let stale_before_acquire = stale.clone();
    let pool = MySqlPoolOptions::new()
        .max_connections(config.max_connections)
        .acquire_timeout(config.acquire_timeout)
        // Under load, one log line per waiting request would flood the log. The metrics show the same.
        .acquire_slow_threshold(config.acquire_timeout)
        // The keep-alive uses idle connections, so the pool never sees them as idle. Their lifetime ends them.
        .idle_timeout(None)
        .after_connect(move |connection, _| {
            let session = session.clone();
            Box::pin(async move { connection.execute(AssertSqlSafe(session)).await.map(drop) })
        })
        .test_before_acquire(false)
        .before_acquire(move |connection, meta| {
            let is_stale = stale_before_acquire.includes(meta.age);
            Box::pin(async move {
                Ok(!is_stale && (meta.idle_for < TRUSTED_IDLE || connection.ping().await.is_ok()))
            })
        })
        .connect_with(options.clone())
        .await?;
    Ok(Server {
        lock_queue: LockQueue::new(config.max_connections),
        health: Health::new(options, first, stale.clone()),
        _keep_alive: KeepAlive::start(pool.clone(), idle_timeout / 3, config.acquire_timeout),
        pool,
    })
}

/// Returns the statements that set up a new session, as one text and so one round trip.
fn session_settings(row_wait: Duration, idle_timeout: Duration) -> String {
    // REPEATABLE READ takes gap locks, which block inserts next to the rows that a worker claims.
    let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    // Without strict mode the server silently truncates a value that does not fit.
    let strict = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')";
    // A row-lock wait must end while the caller still waits for the response.
    let row_wait = format!("SET SESSION innodb_lock_wait_timeout = {}", row_wait.as_secs().max(1));
    // A host that disappears holds its locks no longer than this.
    let idle_timeout = hierlock::idle_session_timeout_sql(idle_timeout);
    [isolation, strict, &row_wait, &idle_timeout].join("; ")
}

/// Pings idle connections, which the server would close otherwise. Stops when dropped.
#[derive(Debug)]
struct KeepAlive(AbortHandle);

impl KeepAlive {
    fn start(pool: MySqlPool, every: Duration, limit: Duration) -> Self {
        let pinging = async move {
            while !pool.is_closed() {
                tokio::time::sleep(every).await;
                for _ in 0..pool.num_idle() {
                    // Returning a connection to the pool pings the server.
                    if let Some(idle) = pool.try_acquire() {
                        PooledConnection::return_to_pool(idle, limit);
                    }
                }
            }
        };
        Self(tokio::spawn(pinging).abort_handle())
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

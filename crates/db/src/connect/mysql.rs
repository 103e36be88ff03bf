//! Opening MySQL and MariaDB.

use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tokio::task::AbortHandle;
use url::Url;

use super::STATEMENT_CACHE;
use crate::error::bounded;
use crate::health::{Health, Outdated};
use crate::pooled::Pooled;
use crate::turns::Turns;
use crate::{Config, Error};

/// A connection that rested longer than this is asked whether it is still there before it is handed out.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// A server, and what stands between it and those who use it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) pool: MySqlPool,
    pub(crate) turns: Turns,
    pub(crate) health: Health,
    _keep_alive: KeepAlive,
}

/// What the URL asks for, in the driver's terms.
pub(crate) fn options(url: &Url) -> Result<MySqlConnectOptions, sqlx::Error> {
    // The driver knows the one scheme.
    let text = url.as_str().replacen("mariadb:", "mysql:", 1);
    let options = MySqlConnectOptions::from_str(&text)?.statement_cache_capacity(STATEMENT_CACHE);
    // Texts of statements have ids in them, and batches have values.
    Ok(options.disable_statement_logging())
}

pub(super) async fn open(url: &Url, config: &Config, outdated: &Outdated) -> Result<Server, Error> {
    let options = options(url)?;
    // The pool would answer every failure to connect with a timeout; a first connection of our own tells the cause.
    let first = bounded(config.acquire_timeout, options.connect()).await?;
    // Nothing of ours is silent for this long in a transaction: a use case has one `acquire_timeout`.
    let silence = config.acquire_timeout * 3;
    let session = session(config.acquire_timeout, silence);
    let before = outdated.clone();
    let pool = MySqlPoolOptions::new()
        .max_connections(config.max_connections)
        .acquire_timeout(config.acquire_timeout)
        // A crowd would fill the log with a line per request that waited, beside the metrics that say so.
        .acquire_slow_threshold(config.acquire_timeout)
        // Those at rest are kept alive, and so never idle in the pool's terms. They end with their lifetime.
        .idle_timeout(None)
        .after_connect(move |connection, _| {
            let session = session.clone();
            Box::pin(async move { connection.execute(AssertSqlSafe(session)).await.map(drop) })
        })
        .test_before_acquire(false)
        .before_acquire(move |connection, meta| {
            let is_outdated = before.includes(meta.age);
            Box::pin(async move {
                Ok(!is_outdated && (meta.idle_for < TRUSTED_IDLE || connection.ping().await.is_ok()))
            })
        })
        .connect_with(options.clone())
        .await?;
    Ok(Server {
        turns: Turns::new(config.max_connections),
        health: Health::new(options, first, outdated.clone()),
        _keep_alive: KeepAlive::start(pool.clone(), silence / 3, config.acquire_timeout),
        pool,
    })
}

/// What each session is set to, in one message.
fn session(row_wait: Duration, silence: Duration) -> String {
    // REPEATABLE READ locks gaps, and so blocks those who insert beside what a worker claims.
    let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    // Without strict mode the server silently cuts a value that does not fit.
    let strict = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')";
    // A wait for a row ends while its caller still waits for the answer.
    let row_wait = format!("SET SESSION innodb_lock_wait_timeout = {}", row_wait.as_secs().max(1));
    // A host that vanishes holds its locks no longer than this.
    let silence = hierlock::end_after_silence(silence);
    [isolation, strict, &row_wait, &silence].join("; ")
}

/// Lets the server hear of the connections at rest, which it would end otherwise. Ends when it is dropped.
#[derive(Debug)]
struct KeepAlive(AbortHandle);

impl KeepAlive {
    fn start(pool: MySqlPool, every: Duration, limit: Duration) -> Self {
        let keeping = async move {
            while !pool.is_closed() {
                tokio::time::sleep(every).await;
                for _ in 0..pool.num_idle() {
                    // The way back to the pool asks the server whether it is there.
                    if let Some(resting) = pool.try_acquire() {
                        Pooled::give_back(resting, limit);
                    }
                }
            }
        };
        Self(tokio::spawn(keeping).abort_handle())
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

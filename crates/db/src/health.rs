//! Whether the server answers and takes writes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Connection, Row};

use crate::Error;
use crate::error::bounded;

/// Fails on a server that is `read_only`, unless the user may write all the same.
const BEGIN_TO_WRITE: &str = "START TRANSACTION READ WRITE; ROLLBACK";

/// When connections were last found to be of no use: the server refused a write, or ended the session behind our back. Those from
/// before are not used again, since they may lead to a server that was demoted or is gone, while its name leads to another one by
/// now. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outdated(Arc<Mutex<Option<Instant>>>);

impl Outdated {
    fn all_until_now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Outdates all connections that are open now if the error says that the server takes no writes.
    pub(crate) fn if_read_only(&self, error: &Error) {
        if matches!(error, Error::ReadOnly(_)) {
            self.all_until_now();
        }
    }

    /// Whether a connection of this age was opened before.
    pub(crate) fn includes(&self, age: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() <= age)
    }
}

/// A connection beside the pool, so that readiness does not depend on how busy the pool is.
#[derive(Debug)]
pub(crate) struct Health {
    server: MySqlConnectOptions,
    connection: tokio::sync::Mutex<Option<MySqlConnection>>,
    outdated: Outdated,
}

impl Health {
    pub(crate) fn new(server: MySqlConnectOptions, first: MySqlConnection, outdated: Outdated) -> Self {
        Self { server, connection: tokio::sync::Mutex::new(Some(first)), outdated }
    }

    /// How the server is connected to.
    pub(crate) const fn options(&self) -> &MySqlConnectOptions {
        &self.server
    }

    /// Fails unless the server answers within `limit` and lets new sessions write.
    pub(crate) async fn check(&self, limit: Duration) -> Result<(), Error> {
        let checked = bounded(limit, async {
            let kept = self.connection.lock().await.take();
            if let Some(kept) = kept {
                if self.attempt(kept).await.is_ok() {
                    return Ok(());
                }
                // The server was demoted or restarted, or another one has its name. Only a new connection tells.
                self.outdated.all_until_now();
            }
            self.attempt(self.server.connect().await?).await
        });
        checked.await.inspect_err(|error| self.outdated.if_read_only(error))
    }

    /// Keeps the connection if it serves.
    async fn attempt(&self, mut connection: MySqlConnection) -> Result<(), Error> {
        // New sessions take over the global default of theirs. MySQL and MariaDB have different names for it, and each ignores
        // the comment that is meant for the other.
        const DEFAULT: &str = "SELECT @@global.innodb_read_only OR /*M! @@global.tx_read_only *//*!80000 @@global.transaction_read_only */";
        takes_writes(&mut connection, format!("{BEGIN_TO_WRITE}; {DEFAULT}")).await?;
        *self.connection.lock().await = Some(connection);
        Ok(())
    }

    pub(crate) async fn close(&self) {
        let kept = self.connection.lock().await.take();
        if let Some(connection) = kept {
            // The server notices by itself, too.
            let _ = connection.close().await;
        }
    }
}

/// Rolls back a transaction that did not end well, and finds out on the same way whether that was because the session cannot
/// write. Then it is [`Error::ReadOnly`].
pub(crate) async fn roll_back_failed(connection: &mut MySqlConnection) -> Result<(), Error> {
    const SESSION: &str = "SELECT @@global.innodb_read_only OR /*M! @@session.tx_read_only *//*!80000 @@session.transaction_read_only */";
    takes_writes(connection, format!("ROLLBACK; {BEGIN_TO_WRITE}; {SESSION}")).await
}

/// Runs a text that the server refuses, or whose only row says that it is true, if it takes no writes.
async fn takes_writes(connection: &mut MySqlConnection, text: String) -> Result<(), Error> {
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).fetch_all(connection).await?;
    match rows.first().map(|row| row.try_get::<i64, _>(0)).transpose()? {
        Some(0) => Ok(()),
        _ => Err(Error::ReadOnly(None)),
    }
}

//! The health check: does the server answer and take writes?

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Connection, Row};

use crate::Error;
use crate::error::bounded;

/// Fails on a server that is `read_only`, unless the user may write all the same.
const BEGIN_TO_WRITE: &str = "START TRANSACTION READ WRITE; ROLLBACK";

/// Remembers when a connection was last found unusable because the server refused a write or ended the session. Connections opened before
/// that moment are not reused: they may lead to a demoted or dead server while its name already resolves to another one. Cheap to clone;
/// clones share state.
#[derive(Clone, Debug, Default)]
pub(crate) struct StaleConnections(Arc<Mutex<Option<Instant>>>);

impl StaleConnections {
    fn mark_all(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Marks all open connections as stale if the error is [`Error::ReadOnly`].
    pub(crate) fn mark_if_read_only(&self, error: &Error) {
        if matches!(error, Error::ReadOnly(_)) {
            self.mark_all();
        }
    }

    /// Returns whether a connection of this age is stale.
    pub(crate) fn includes(&self, age: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() <= age)
    }
}

/// Checks the server on a connection outside the pool, so that readiness does not depend on how busy the pool is.
#[derive(Debug)]
pub(crate) struct Health {
    server: MySqlConnectOptions,
    connection: tokio::sync::Mutex<Option<MySqlConnection>>,
    stale: StaleConnections,
}

impl Health {
    pub(crate) fn new(server: MySqlConnectOptions, first: MySqlConnection, stale: StaleConnections) -> Self {
        Self { server, connection: tokio::sync::Mutex::new(Some(first)), stale }
    }

    /// Returns the driver's connect options for the server.
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
                // The server was demoted or restarted, or its name resolves to another one. Only a new connection shows which.
                self.stale.mark_all();
            }
            self.attempt(self.server.connect().await?).await
        });
        checked.await.inspect_err(|error| self.stale.mark_if_read_only(error))
    }

    /// Checks the connection, and keeps it for the next check if it is usable.
    async fn attempt(&self, mut connection: MySqlConnection) -> Result<(), Error> {
        // New sessions inherit the global default. MySQL and MariaDB name it differently, and each ignores the other's
        // conditional comment.
        const DEFAULT: &str = "SELECT @@global.innodb_read_only OR /*M! @@global.tx_read_only *//*!80000 @@global.transaction_read_only */";
        check_takes_writes(&mut connection, format!("{BEGIN_TO_WRITE}; {DEFAULT}")).await?;
        *self.connection.lock().await = Some(connection);
        Ok(())
    }

    pub(crate) async fn close(&self) {
        let kept = self.connection.lock().await.take();
        if let Some(connection) = kept {
            // Best effort: the server also notices a closed socket.
            let _ = connection.close().await;
        }
    }
}

/// Rolls back a failed transaction and checks, in the same round trip, whether the session can write. Fails with [`Error::ReadOnly`] if it
/// cannot.
pub(crate) async fn roll_back_failed(connection: &mut MySqlConnection) -> Result<(), Error> {
    const SESSION: &str = "SELECT @@global.innodb_read_only OR /*M! @@session.tx_read_only *//*!80000 @@session.transaction_read_only */";
    check_takes_writes(connection, format!("ROLLBACK; {BEGIN_TO_WRITE}; {SESSION}")).await
}

/// Runs a text that ends with a query for a read-only flag. Fails with [`Error::ReadOnly`] if the flag is set or the server refuses to begin
/// a read-write transaction.
async fn check_takes_writes(connection: &mut MySqlConnection, text: String) -> Result<(), Error> {
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).fetch_all(connection).await?;
    match rows.first().map(|row| row.try_get::<i64, _>(0)).transpose()? {
        Some(0) => Ok(()),
        _ => Err(Error::ReadOnly(None)),
    }
}

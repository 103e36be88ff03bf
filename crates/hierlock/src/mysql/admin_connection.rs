//! A connection outside the session pool, opened on demand: to kill sessions, draw fencing tokens and read lock waits.

use std::pin::Pin;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use tokio::sync::Mutex;

use crate::Error;
use crate::error::bounded;

/// The future of an operation on the connection.
pub(super) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'a>>;

#[derive(Debug)]
pub(super) struct AdminConnection {
    database: MySqlConnectOptions,
    connection: Mutex<Option<MySqlConnection>>,
    limit: Duration,
}

impl AdminConnection {
    pub(super) fn new(database: MySqlConnectOptions, limit: Duration) -> Self {
        Self { database, connection: Mutex::default(), limit }
    }

    /// Runs the work, which must be idempotent: if the idle connection turns out to be dead, the work is repeated on a new one.
    pub(super) async fn run<T>(
        &self,
        work: impl Fn(&mut MySqlConnection) -> Work<'_, T>,
    ) -> Result<T, Error> {
        // An operation before ours may take up to two limits, one for each of its attempts.
        let free = async { Ok::<_, sqlx::Error>(self.connection.lock().await) };
        let mut slot = bounded(self.limit * 2, free).await?;
        // A missing privilege is an answer, which a new connection would not change.
        if let Some(idle) = slot.take()
            && let done @ (Ok(_) | Err(Error::MissingPrivilege(_))) =
                self.attempt(&mut slot, idle, &work).await
        {
            return done;
        }
        let new = bounded(self.limit, self.database.connect()).await?;
        self.attempt(&mut slot, new, &work).await
    }

    /// Runs the work, and keeps the connection if it can be used again.
    async fn attempt<T>(
        &self,
        slot: &mut Option<MySqlConnection>,
        mut connection: MySqlConnection,
        work: &impl Fn(&mut MySqlConnection) -> Work<'_, T>,
    ) -> Result<T, Error> {
        let done = bounded(self.limit, work(&mut connection)).await;
        if matches!(done, Ok(_) | Err(Error::MissingPrivilege(_))) {
            *slot = Some(connection);
        }
        done
    }
}

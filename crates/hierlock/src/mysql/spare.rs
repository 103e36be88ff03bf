//! A connection beside the sessions, opened when it is needed: for killing, counting and looking.

use std::pin::Pin;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use tokio::sync::Mutex;

use crate::Error;
use crate::error::bounded;

/// What is done on the connection.
pub(super) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'a>>;

#[derive(Debug)]
pub(super) struct Spare {
    database: MySqlConnectOptions,
    connection: Mutex<Option<MySqlConnection>>,
    limit: Duration,
}

impl Spare {
    pub(super) fn new(database: MySqlConnectOptions, limit: Duration) -> Self {
        Self { database, connection: Mutex::default(), limit }
    }

    /// Does the work, which must be fit to be done twice: a connection that rested may be gone, and then another is tried.
    pub(super) async fn run<T>(
        &self,
        work: impl Fn(&mut MySqlConnection) -> Work<'_, T>,
    ) -> Result<T, Error> {
        // Those before us may be at it for as long as they may, each.
        let free = async { Ok::<_, sqlx::Error>(self.connection.lock().await) };
        let mut slot = bounded(self.limit * 2, free).await?;
        if let Some(rested) = slot.take()
            && let Ok(done) = self.attempt(&mut slot, rested, &work).await
        {
            return Ok(done);
        }
        let fresh = bounded(self.limit, self.database.connect()).await?;
        self.attempt(&mut slot, fresh, &work).await
    }

    /// Keeps the connection if the work succeeds.
    async fn attempt<T>(
        &self,
        slot: &mut Option<MySqlConnection>,
        mut connection: MySqlConnection,
        work: &impl Fn(&mut MySqlConnection) -> Work<'_, T>,
    ) -> Result<T, Error> {
        let done = bounded(self.limit, work(&mut connection)).await?;
        *slot = Some(connection);
        Ok(done)
    }
}

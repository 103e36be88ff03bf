//! A connection on loan from a pool, given back in bounded time.
//!
//! The driver's own way back to the pool asks the server whether the connection still works, and waits for the answer for
//! ever: on a network that has fallen silent every connection in use would be lost to the pool for good.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Executor, MySql, MySqlConnection, Pool, Sqlite, SqliteConnection};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::Error;

/// A database whose connections run statements, as all do; the driver does not say so by itself.
pub(crate) trait Runs: Database {
    fn run<'c>(
        connection: &'c mut Self::Connection,
        statement: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send + 'c;
}

impl Runs for Sqlite {
    async fn run(connection: &mut SqliteConnection, statement: &'static str) -> Result<(), sqlx::Error> {
        connection.execute(statement).await.map(drop)
    }
}

impl Runs for MySql {
    async fn run(connection: &mut MySqlConnection, statement: &'static str) -> Result<(), sqlx::Error> {
        connection.execute(statement).await.map(drop)
    }
}

/// A connection, in a transaction or not. An open transaction is rolled back when it is dropped.
pub(crate) struct Pooled<D: Runs> {
    /// Some until it is dropped.
    connection: Option<PoolConnection<D>>,
    in_transaction: bool,
    /// How long beginning, committing and giving back may take.
    limit: Duration,
}

impl<D: Runs> Pooled<D> {
    pub(crate) async fn acquire(pool: &Pool<D>, limit: Duration) -> Result<Self, Error> {
        Ok(Self { connection: Some(pool.acquire().await?), in_transaction: false, limit })
    }

    pub(crate) async fn begin(
        pool: &Pool<D>,
        statement: &'static str,
        limit: Duration,
    ) -> Result<Self, Error> {
        let mut this = Self::acquire(pool, limit).await?;
        // It may have begun although we were not told.
        this.in_transaction = true;
        this.run(statement).await?;
        Ok(this)
    }

    /// When this fails with [`Error::Unreachable`], the transaction may be committed or not.
    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.run("COMMIT").await?;
        self.in_transaction = false;
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), Error> {
        self.run("ROLLBACK").await?;
        self.in_transaction = false;
        Ok(())
    }

    async fn run(&mut self, statement: &'static str) -> Result<(), Error> {
        let limit = self.limit;
        match timeout(limit, D::run(self, statement)).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::Unreachable(sqlx::Error::PoolTimedOut)),
        }
    }
}

impl<D: Runs> Drop for Pooled<D> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let (in_transaction, limit) = (self.in_transaction, self.limit);
        let Ok(runtime) = Handle::try_current() else {
            // Nobody is left to talk to the server; closing the connection says enough.
            drop(connection.detach());
            return;
        };
        runtime.spawn(async move {
            if in_transaction
                && !matches!(timeout(limit, D::run(&mut connection, "ROLLBACK")).await, Ok(Ok(())))
            {
                drop(connection.detach());
                return;
            }
            // When the time is over the connection is closed and its place is free.
            let _ = timeout(limit, connection.return_to_pool()).await;
        });
    }
}

impl<D: Runs> Deref for Pooled<D> {
    type Target = D::Connection;

    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect("not dropped yet")
    }
}

impl<D: Runs> DerefMut for Pooled<D> {
    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect("not dropped yet")
    }
}

impl<D: Runs> fmt::Debug for Pooled<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("in_transaction", &self.in_transaction).finish_non_exhaustive()
    }
}

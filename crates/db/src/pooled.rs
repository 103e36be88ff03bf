//! A connection on loan from a pool, given back in bounded time.
//!
//! The driver's own way back to the pool asks the server whether the connection still works, and waits for the answer for
//! ever: on a network that has fallen silent every connection in use would be lost to the pool for good.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::Error;
use crate::error::bounded;

/// A connection, in a transaction or not. An open transaction is rolled back when it is dropped.
pub(crate) struct Pooled<D: Database> {
    /// Some until it is dropped.
    connection: Option<PoolConnection<D>>,
    state: State,
    /// How long beginning, committing and giving back may take.
    limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    NoTransaction,
    Open,
    /// A transaction is beginning or ending, and we were not told whether it did.
    InDoubt,
}

impl<D: Database> Pooled<D> {
    pub(crate) async fn acquire(pool: &Pool<D>, limit: Duration) -> Result<Self, Error> {
        Ok(Self { connection: Some(pool.acquire().await?), state: State::NoTransaction, limit })
    }

    pub(crate) async fn begin(
        pool: &Pool<D>,
        statement: &'static str,
        limit: Duration,
    ) -> Result<Self, Error> {
        let mut this = Self::acquire(pool, limit).await?;
        this.state = State::InDoubt;
        let statement = Some(statement.into_sql_str());
        bounded(limit, D::TransactionManager::begin(&mut this, statement)).await?;
        this.state = State::Open;
        Ok(this)
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.state = State::InDoubt;
        bounded(self.limit, D::TransactionManager::commit(&mut self)).await?;
        self.state = State::NoTransaction;
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), Error> {
        self.state = State::InDoubt;
        bounded(self.limit, D::TransactionManager::rollback(&mut self)).await?;
        self.state = State::NoTransaction;
        Ok(())
    }
}

impl<D: Database> Drop for Pooled<D> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let runtime = match (self.state, Handle::try_current()) {
            (State::NoTransaction, Ok(runtime)) => runtime,
            (State::Open, Ok(runtime)) => {
                // Sent with what is sent next, which is the question whether the connection still works.
                D::TransactionManager::start_rollback(&mut connection);
                runtime
            }
            // Closing it says enough: the server rolls back what was not committed. The pool opens another one.
            (State::InDoubt, _) | (_, Err(_)) => return drop(connection.detach()),
        };
        // When the time is over the connection is closed and its place is free.
        runtime.spawn(timeout(self.limit, connection.return_to_pool()));
    }
}

impl<D: Database> Deref for Pooled<D> {
    type Target = D::Connection;

    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect("not dropped yet")
    }
}

impl<D: Database> DerefMut for Pooled<D> {
    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect("not dropped yet")
    }
}

impl<D: Database> fmt::Debug for Pooled<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("state", &self.state).finish_non_exhaustive()
    }
}

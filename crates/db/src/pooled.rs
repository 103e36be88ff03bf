//! A pooled connection that is returned to its pool in bounded time.
//!
//! When the driver returns a connection, it pings the server and waits for the response without a limit. On a network that has gone
//! silent, the pool would lose every connection in use for good.
//!
//! Transactions begin and end with statements of ours, so that these can share a round trip with others.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Executor, MySql, Pool, SqlSafeStr, SqlStr, Sqlite};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::Error;
use crate::cancel_safe::CancelSafeConnection;
use crate::error::bounded;
use crate::health::{self, StaleConnections};

/// A database that executes a text of several statements.
pub(crate) trait Backend: Database {
    /// Executes the statements and returns how many rows they changed.
    fn execute_script(connection: &mut Self::Connection, text: SqlStr) -> ExecuteFuture<'_>;

    /// Rolls back a transaction that its owner dropped. Fails with [`Error::ReadOnly`] if the session cannot write.
    fn roll_back_failed(connection: &mut Self::Connection) -> RollbackFuture<'_>;
}

type ExecuteFuture<'a> = Pin<Box<dyn Future<Output = Result<u64, sqlx::Error>> + Send + 'a>>;
type RollbackFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

impl Backend for Sqlite {
    fn execute_script(connection: &mut Self::Connection, text: SqlStr) -> ExecuteFuture<'_> {
        Box::pin(async move { connection.execute(text).await.map(|done| done.rows_affected()) })
    }

    fn roll_back_failed(connection: &mut Self::Connection) -> RollbackFuture<'_> {
        Box::pin(async move { Ok(connection.execute(ROLLBACK).await.map(drop)?) })
    }
}

impl Backend for MySql {
    fn execute_script(connection: &mut Self::Connection, text: SqlStr) -> ExecuteFuture<'_> {
        Box::pin(async move { connection.execute(text).await.map(|done| done.rows_affected()) })
    }

    fn roll_back_failed(connection: &mut Self::Connection) -> RollbackFuture<'_> {
        Box::pin(health::roll_back_failed(connection))
    }
}

/// A connection with or without an open transaction, which is rolled back on drop.
pub(crate) struct PooledConnection<D: Backend> {
    /// Some until drop.
    connection: Option<CancelSafeConnection<D>>,
    state: State,
    /// The time limit for beginning, committing and returning to the pool.
    limit: Duration,
    /// Notified of refused writes.
    stale: StaleConnections,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    NoTransaction,
    Open,
    /// A transaction was beginning or ending, and the result is unknown.
    InDoubt,
}

impl<D: Backend> PooledConnection<D> {
    pub(crate) async fn acquire(
        pool: &Pool<D>,
        limit: Duration,
        stale: &StaleConnections,
    ) -> Result<Self, Error> {
        let (connection, stale) = (Some(CancelSafeConnection::new(pool.acquire().await?)), stale.clone());
        Ok(Self { connection, state: State::NoTransaction, limit, stale })
    }

    /// Returns a connection without an open transaction to its pool.
    pub(crate) fn return_to_pool(connection: PoolConnection<D>, limit: Duration) {
        let (connection, stale) = (Some(CancelSafeConnection::new(connection)), StaleConnections::default());
        drop(Self { connection, state: State::NoTransaction, limit, stale });
    }

    /// Begins a transaction with a text whose first statement does so. Returns how many rows the other statements changed.
    pub(crate) async fn begin(mut self, text: SqlStr) -> Result<(Self, u64), Error> {
        self.state = State::InDoubt;
        let begun = bounded(self.limit, D::execute_script(&mut self, text)).await;
        let changed = begun.inspect_err(|error| self.stale.mark_if_read_only(error))?;
        self.state = State::Open;
        Ok((self, changed))
    }

    /// Sets whether the connection must be closed to end its open transaction.
    pub(crate) fn set_in_doubt(&mut self, is_in_doubt: bool) {
        self.state = if is_in_doubt { State::InDoubt } else { State::Open };
    }

    /// Executes statements in the open transaction. Returns how many rows they changed.
    pub(crate) async fn execute_in_tx(&mut self, text: SqlStr) -> Result<u64, Error> {
        self.state = State::InDoubt;
        let written = bounded(self.limit, D::execute_script(self, text)).await;
        if !matches!(written, Err(Error::Unreachable(_))) {
            self.state = State::Open;
        }
        written
    }

    /// Returns the connection for the caller's own statements.
    #[expect(clippy::expect_used, reason = "see the field")]
    pub(crate) fn cancel_safe(&mut self) -> &mut CancelSafeConnection<D> {
        self.connection.as_mut().expect("not dropped yet")
    }

    /// Commits the transaction with a text whose last statement is `COMMIT`.
    pub(crate) async fn commit(mut self, text: SqlStr) -> Result<(), Error> {
        self.state = State::InDoubt;
        let committed = bounded(self.limit, D::execute_script(&mut self, text)).await;
        self.state = match &committed {
            Ok(_) => State::NoTransaction,
            // The commit may or may not have happened.
            Err(Error::Unreachable(_)) => State::InDoubt,
            // It was not committed, and no write can succeed on this connection.
            Err(error @ Error::ReadOnly(_)) => {
                self.stale.mark_if_read_only(error);
                State::InDoubt
            }
            // A statement was refused, and the ones after it were not run.
            Err(_) => State::Open,
        };
        committed.map(drop)
    }

    pub(crate) async fn rollback(mut self) -> Result<(), Error> {
        self.state = State::InDoubt;
        bounded(self.limit, D::execute_script(&mut self, ROLLBACK.into_sql_str())).await?;
        self.state = State::NoTransaction;
        Ok(())
    }
}

const ROLLBACK: &str = "ROLLBACK";

impl PooledConnection<MySql> {
    /// Begins a transaction and reads the server's connection id, in one round trip.
    pub(crate) async fn begin_with_id(mut self) -> Result<(Self, u64), Error> {
        const BEGIN: &str = "START TRANSACTION; SELECT CONNECTION_ID()";
        let limit = self.limit;
        self.state = State::InDoubt;
        let reading = async {
            // All rows, because an unread rest of the result would fail the next query.
            let rows = sqlx::raw_sql(BEGIN).fetch_all(&mut *self).await?;
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            sqlx::Row::try_get::<u64, _>(row, 0)
        };
        let id = bounded(limit, reading).await?;
        self.state = State::Open;
        Ok((self, id))
    }
}

impl<D: Backend> Drop for PooledConnection<D> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let state = if connection.was_interrupted() { State::InDoubt } else { self.state };
        let mut connection = connection.connection;
        let (is_open, limit) = (state == State::Open, self.limit);
        let stale = self.stale.clone();
        let runtime = match (state, Handle::try_current()) {
            (State::NoTransaction | State::Open, Ok(runtime)) => runtime,
            // Closing the connection makes the server roll back. The pool opens another one.
            (State::InDoubt, _) | (_, Err(_)) => return drop(connection.detach()),
        };
        runtime.spawn(async move {
            if is_open {
                let rolled_back = bounded(limit, D::roll_back_failed(&mut connection)).await;
                if let Err(error) = rolled_back {
                    stale.mark_if_read_only(&error);
                    return drop(connection.detach());
                }
            }
            // On timeout the connection is closed, which frees its place in the pool.
            let _ = timeout(limit, connection.return_to_pool()).await;
        });
    }
}

impl<D: Backend> Deref for PooledConnection<D> {
    type Target = D::Connection;

    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect("not dropped yet")
    }
}

impl<D: Backend> DerefMut for PooledConnection<D> {
    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect("not dropped yet")
    }
}

impl<D: Backend> fmt::Debug for PooledConnection<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledConnection").field("state", &self.state).finish_non_exhaustive()
    }
}

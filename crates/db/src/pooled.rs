//! A connection on loan from a pool, given back in bounded time.
//!
//! The driver's own way back to the pool asks the server whether the connection still works, and waits for the answer for
//! ever: on a network that has fallen silent every connection in use would be lost to the pool for good.
//!
//! Transactions are begun and ended by statements of ours, so that they can be sent together with others.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Executor, MySql, Pool, SqlSafeStr, SqlStr, Sqlite};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::Error;
use crate::error::bounded;
use crate::health::{self, Outdated};
use crate::watched::Watched;

/// A database that can be told something in a text of several statements. It says how many rows they changed.
pub(crate) trait Told: Database {
    fn tell(connection: &mut Self::Connection, text: SqlStr) -> Telling<'_>;

    /// Rolls back a transaction that was not ended by its owner. Fails with [`Error::ReadOnly`] if it could not have written.
    fn roll_back_failed(connection: &mut Self::Connection) -> RollingBack<'_>;
}

type Telling<'a> = Pin<Box<dyn Future<Output = Result<u64, sqlx::Error>> + Send + 'a>>;
type RollingBack<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

impl Told for Sqlite {
    fn tell(connection: &mut Self::Connection, text: SqlStr) -> Telling<'_> {
        Box::pin(async move { connection.execute(text).await.map(|done| done.rows_affected()) })
    }

    fn roll_back_failed(connection: &mut Self::Connection) -> RollingBack<'_> {
        Box::pin(async move { Ok(connection.execute(ROLLBACK).await.map(drop)?) })
    }
}

impl Told for MySql {
    fn tell(connection: &mut Self::Connection, text: SqlStr) -> Telling<'_> {
        Box::pin(async move { connection.execute(text).await.map(|done| done.rows_affected()) })
    }

    fn roll_back_failed(connection: &mut Self::Connection) -> RollingBack<'_> {
        Box::pin(health::roll_back_failed(connection))
    }
}

/// A connection, in a transaction or not. An open transaction is rolled back when it is dropped.
pub(crate) struct Pooled<D: Told> {
    /// Some until it is dropped.
    connection: Option<Watched<D>>,
    state: State,
    /// How long beginning, committing and giving back may take.
    limit: Duration,
    /// Learns of refused writes.
    outdated: Outdated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    NoTransaction,
    Open,
    /// A transaction is beginning or ending, and we were not told whether it did.
    InDoubt,
}

impl<D: Told> Pooled<D> {
    pub(crate) async fn acquire(pool: &Pool<D>, limit: Duration, outdated: &Outdated) -> Result<Self, Error> {
        let (connection, outdated) = (Some(Watched::new(pool.acquire().await?)), outdated.clone());
        Ok(Self { connection, state: State::NoTransaction, limit, outdated })
    }

    /// Gives back a connection that is in no transaction.
    pub(crate) fn give_back(connection: PoolConnection<D>, limit: Duration) {
        let (connection, outdated) = (Some(Watched::new(connection)), Outdated::default());
        drop(Self { connection, state: State::NoTransaction, limit, outdated });
    }

    /// Begins a transaction by a text whose first statement does that. Says how many rows the others changed.
    pub(crate) async fn begin(mut self, text: SqlStr) -> Result<(Self, u64), Error> {
        self.state = State::InDoubt;
        let begun = bounded(self.limit, D::tell(&mut self, text)).await;
        let changed = begun.inspect_err(|error| self.outdated.if_read_only(error))?;
        self.state = State::Open;
        Ok((self, changed))
    }

    /// Says whether the open transaction can be given up only with its connection.
    pub(crate) fn set_in_doubt(&mut self, is_in_doubt: bool) {
        self.state = if is_in_doubt { State::InDoubt } else { State::Open };
    }

    /// Runs statements in the middle of the transaction.
    pub(crate) async fn write(&mut self, text: SqlStr) -> Result<u64, Error> {
        self.state = State::InDoubt;
        let written = bounded(self.limit, D::tell(self, text)).await;
        if !matches!(written, Err(Error::Unreachable(_))) {
            self.state = State::Open;
        }
        written
    }

    /// The connection, for statements of the caller's.
    #[expect(clippy::expect_used, reason = "see the field")]
    pub(crate) fn watched(&mut self) -> &mut Watched<D> {
        self.connection.as_mut().expect("not dropped yet")
    }

    /// Ends the transaction by a text whose last statement is `COMMIT`.
    pub(crate) async fn commit(mut self, text: SqlStr) -> Result<(), Error> {
        self.state = State::InDoubt;
        let told = bounded(self.limit, D::tell(&mut self, text)).await;
        self.state = match &told {
            Ok(_) => State::NoTransaction,
            // We do not know what became of it.
            Err(Error::Unreachable(_)) => State::InDoubt,
            // It was not committed, and nothing can be on this connection.
            Err(error @ Error::ReadOnly(_)) => {
                self.outdated.if_read_only(error);
                State::InDoubt
            }
            // A statement was refused, and those behind it were not run.
            Err(_) => State::Open,
        };
        told.map(drop)
    }

    pub(crate) async fn rollback(mut self) -> Result<(), Error> {
        self.state = State::InDoubt;
        bounded(self.limit, D::tell(&mut self, ROLLBACK.into_sql_str())).await?;
        self.state = State::NoTransaction;
        Ok(())
    }
}

const ROLLBACK: &str = "ROLLBACK";

impl Pooled<MySql> {
    /// Begins a transaction, and asks for the server's number of the connection on the same way.
    pub(crate) async fn begin_numbered(mut self) -> Result<(Self, u64), Error> {
        const BEGIN: &str = "START TRANSACTION; SELECT CONNECTION_ID()";
        let limit = self.limit;
        self.state = State::InDoubt;
        let asking = async {
            // All of them: what is left unread of an answer is an error of the next question.
            let rows = sqlx::raw_sql(BEGIN).fetch_all(&mut *self).await?;
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            sqlx::Row::try_get::<u64, _>(row, 0)
        };
        let number = bounded(limit, asking).await?;
        self.state = State::Open;
        Ok((self, number))
    }
}

impl<D: Told> Drop for Pooled<D> {
    fn drop(&mut self) {
        let Some(watched) = self.connection.take() else { return };
        let state = if watched.was_cut() { State::InDoubt } else { self.state };
        let mut connection = watched.connection;
        let (is_open, limit) = (state == State::Open, self.limit);
        let outdated = self.outdated.clone();
        let runtime = match (state, Handle::try_current()) {
            (State::NoTransaction | State::Open, Ok(runtime)) => runtime,
            // Closing it says enough: the server rolls back what was not committed. The pool opens another one.
            (State::InDoubt, _) | (_, Err(_)) => return drop(connection.detach()),
        };
        runtime.spawn(async move {
            if is_open {
                let rolled_back = bounded(limit, D::roll_back_failed(&mut connection)).await;
                if let Err(error) = rolled_back {
                    outdated.if_read_only(&error);
                    return drop(connection.detach());
                }
            }
            // When the time is over the connection is closed and its place is free.
            let _ = timeout(limit, connection.return_to_pool()).await;
        });
    }
}

impl<D: Told> Deref for Pooled<D> {
    type Target = D::Connection;

    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect("not dropped yet")
    }
}

impl<D: Told> DerefMut for Pooled<D> {
    #[expect(clippy::expect_used, reason = "see the field")]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect("not dropped yet")
    }
}

impl<D: Told> fmt::Debug for Pooled<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("state", &self.state).finish_non_exhaustive()
    }
}

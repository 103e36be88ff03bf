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

/// A database that can be told something in a text of several statements. It says how many rows they changed.
pub(crate) trait Told: Database {
    fn tell(connection: &mut Self::Connection, text: SqlStr) -> Telling<'_>;
}

type Telling<'a> = Pin<Box<dyn Future<Output = Result<u64, sqlx::Error>> + Send + 'a>>;

impl Told for Sqlite {
    fn tell(connection: &mut Self::Connection, text: SqlStr) -> Telling<'_> {
        Box::pin(async move { connection.execute(text).await.map(|done| done.rows_affected()) })
    }
}

impl Told for MySql {
    fn tell(connection: &mut Self::Connection, text: SqlStr) -> Telling<'_> {
        Box::pin(async move { connection.execute(text).await.map(|done| done.rows_affected()) })
    }
}

/// A connection, in a transaction or not. An open transaction is rolled back when it is dropped.
pub(crate) struct Pooled<D: Told> {
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

impl<D: Told> Pooled<D> {
    pub(crate) async fn acquire(pool: &Pool<D>, limit: Duration) -> Result<Self, Error> {
        Ok(Self { connection: Some(pool.acquire().await?), state: State::NoTransaction, limit })
    }

    /// Begins a transaction by a text whose first statement does that. Says how many rows the others changed.
    pub(crate) async fn begin(pool: &Pool<D>, text: SqlStr, limit: Duration) -> Result<(Self, u64), Error> {
        let mut this = Self::acquire(pool, limit).await?;
        this.state = State::InDoubt;
        let changed = bounded(limit, D::tell(&mut this, text)).await?;
        this.state = State::Open;
        Ok((this, changed))
    }

    /// Says whether the open transaction can be given up only with its connection.
    pub(crate) fn set_in_doubt(&mut self, is_in_doubt: bool) {
        self.state = if is_in_doubt { State::InDoubt } else { State::Open };
    }

    /// Tells the server something in the middle of the transaction.
    pub(crate) async fn write(&mut self, text: SqlStr) -> Result<u64, Error> {
        bounded(self.limit, D::tell(self, text)).await
    }

    /// Ends the transaction by a text whose last statement is `COMMIT`.
    pub(crate) async fn commit(mut self, text: SqlStr) -> Result<(), Error> {
        self.state = State::InDoubt;
        let told = bounded(self.limit, D::tell(&mut self, text)).await;
        self.state = match &told {
            Ok(_) => State::NoTransaction,
            // We do not know what became of it.
            Err(Error::Unreachable(_)) => State::InDoubt,
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
    pub(crate) async fn begin_numbered(pool: &Pool<MySql>, limit: Duration) -> Result<(Self, u64), Error> {
        const BEGIN: &str = "START TRANSACTION; SELECT CONNECTION_ID()";
        let mut this = Self::acquire(pool, limit).await?;
        this.state = State::InDoubt;
        let asking = async {
            // All of them: what is left unread of an answer is an error of the next question.
            let rows = sqlx::raw_sql(BEGIN).fetch_all(&mut *this).await?;
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            sqlx::Row::try_get::<u64, _>(row, 0)
        };
        let number = bounded(limit, asking).await?;
        this.state = State::Open;
        Ok((this, number))
    }
}

impl<D: Told> Drop for Pooled<D> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let (is_open, limit) = (self.state == State::Open, self.limit);
        let runtime = match (self.state, Handle::try_current()) {
            (State::NoTransaction | State::Open, Ok(runtime)) => runtime,
            // Closing it says enough: the server rolls back what was not committed. The pool opens another one.
            (State::InDoubt, _) | (_, Err(_)) => return drop(connection.detach()),
        };
        runtime.spawn(async move {
            if is_open {
                let rolled_back = timeout(limit, D::tell(&mut connection, ROLLBACK.into_sql_str())).await;
                if !matches!(rolled_back, Ok(Ok(_))) {
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

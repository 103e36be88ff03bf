//! A connection that detects when a statement is cancelled before its result is complete.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sqlx::mysql::{MySqlQueryResult, MySqlRow, MySqlStatement, MySqlTypeInfo};
use sqlx::pool::PoolConnection;
use sqlx::{Database, Either, Execute, Executor, MySql, SqlStr};

/// A pooled connection that is safe to cancel. MySQL statements run on `&mut` of it.
///
/// The MySQL driver loses its protocol state if its future is dropped while it reads a result or prepares a statement. The next statement would
/// read the rest of that result as its own: an error, a panic, or a wait that keeps the connection out of the pool. So this type tracks whether
/// the last poll was pending. Such a connection is closed instead of being returned to the pool.
pub struct CancelSafeConnection<D: Database> {
    pub(crate) connection: PoolConnection<D>,
    is_pending: bool,
}

impl<D: Database> CancelSafeConnection<D> {
    pub(crate) fn new(connection: PoolConnection<D>) -> Self {
        Self { connection, is_pending: false }
    }

    /// Returns whether a statement was cancelled before its result was complete.
    pub(crate) const fn was_interrupted(&self) -> bool {
        self.is_pending
    }
}

impl<D: Database> Deref for CancelSafeConnection<D> {
    type Target = D::Connection;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl<D: Database> DerefMut for CancelSafeConnection<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connection
    }
}

impl<D: Database> fmt::Debug for CancelSafeConnection<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelSafeConnection").field("is_pending", &self.is_pending).finish_non_exhaustive()
    }
}

impl<'c> Executor<'c> for &'c mut CancelSafeConnection<MySql> {
    type Database = MySql;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<MySqlQueryResult, MySqlRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        let CancelSafeConnection { connection, is_pending } = self;
        Box::pin(InFlight { result: (&mut **connection).fetch_many(query), is_pending })
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<MySqlRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        let CancelSafeConnection { connection, is_pending } = self;
        Box::pin(InFlight { result: (&mut **connection).fetch_optional(query), is_pending })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [MySqlTypeInfo],
    ) -> BoxFuture<'e, Result<MySqlStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        let CancelSafeConnection { connection, is_pending } = self;
        Box::pin(InFlight { result: (&mut **connection).prepare_with(sql, parameters), is_pending })
    }
}

/// A result in flight, which records whether its last poll was pending.
struct InFlight<'e, A> {
    result: A,
    is_pending: &'e mut bool,
}

impl<A: Future + Unpin> Future for InFlight<'_, A> {
    type Output = A::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.result).poll(context);
        *self.is_pending = polled.is_pending();
        polled
    }
}

impl<A: Stream + Unpin> Stream for InFlight<'_, A> {
    type Item = A::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = Pin::new(&mut self.result).poll_next(context);
        *self.is_pending = polled.is_pending();
        polled
    }
}

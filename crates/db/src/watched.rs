//! A connection that notices when its caller stops waiting in the middle of an answer.

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

/// A connection on loan from the pool. Statements for MySQL run on `&mut` of it.
///
/// The MySQL driver loses its place if it is dropped while it reads an answer or prepares a statement. The next statement would take the rest
/// of that answer for its own: an error, a panic, or a wait that keeps the connection from the pool. So this type remembers whether the last
/// poll was still waiting; such a connection is closed instead of given back.
pub struct Watched<D: Database> {
    pub(crate) connection: PoolConnection<D>,
    is_waiting: bool,
}

impl<D: Database> Watched<D> {
    pub(crate) fn new(connection: PoolConnection<D>) -> Self {
        Self { connection, is_waiting: false }
    }

    /// Returns whether a statement was dropped before its answer was complete.
    pub(crate) const fn was_cut(&self) -> bool {
        self.is_waiting
    }
}

impl<D: Database> Deref for Watched<D> {
    type Target = D::Connection;

    fn deref(&self) -> &Self::Target {
        &self.connection
    }
}

impl<D: Database> DerefMut for Watched<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.connection
    }
}

impl<D: Database> fmt::Debug for Watched<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("is_waiting", &self.is_waiting).finish_non_exhaustive()
    }
}

impl<'c> Executor<'c> for &'c mut Watched<MySql> {
    type Database = MySql;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<MySqlQueryResult, MySqlRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        let Watched { connection, is_waiting } = self;
        Box::pin(Watch { answer: (&mut **connection).fetch_many(query), is_waiting })
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<MySqlRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        let Watched { connection, is_waiting } = self;
        Box::pin(Watch { answer: (&mut **connection).fetch_optional(query), is_waiting })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [MySqlTypeInfo],
    ) -> BoxFuture<'e, Result<MySqlStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        let Watched { connection, is_waiting } = self;
        Box::pin(Watch { answer: (&mut **connection).prepare_with(sql, parameters), is_waiting })
    }
}

/// An answer, and whether its last poll was waiting for more of it.
struct Watch<'e, A> {
    answer: A,
    is_waiting: &'e mut bool,
}

impl<A: Future + Unpin> Future for Watch<'_, A> {
    type Output = A::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.answer).poll(context);
        *self.is_waiting = polled.is_pending();
        polled
    }
}

impl<A: Stream + Unpin> Stream for Watch<'_, A> {
    type Item = A::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = Pin::new(&mut self.answer).poll_next(context);
        *self.is_waiting = polled.is_pending();
        polled
    }
}

//! Connections and transactions in either dialect.

use std::fmt;
use std::sync::Arc;

use hierlock::{LockGuard, OwnedTarget, Target};
use sqlx::{AssertSqlSafe, MySql, Row, SqlSafeStr, Sqlite, SqliteConnection};

use tokio::sync::Notify;

use crate::cancel_safe::CancelSafeConnection;
use crate::pooled::PooledConnection;
use crate::script::Script;
use crate::{DbFuture, Dialect, Error, Value, mark};

/// An open transaction. It is rolled back unless [`commit`](Self::commit) is called.
///
/// Statements have no time limit of their own: a caller that cannot wait drops the transaction, which frees its connection. Do not wait for
/// anything else between two statements: the server ends a transaction that is idle for three times `db.acquire_timeout`.
#[derive(Debug)]
pub struct Tx {
    // Fields are dropped in this order: the lock outlives the transaction that it protects.
    pub(crate) connection: AnyConnection,
    /// The in-process lock, on SQLite.
    pub(crate) lock: Option<LockGuard>,
    /// The targets that are locked until the transaction ends.
    pub(crate) locked: Vec<OwnedTarget>,
    /// Notified after the commit.
    pub(crate) waiting: Vec<Arc<Notify>>,
    pub(crate) after_commit: AfterCommit,
    /// The statements that are sent together with the commit.
    pub(crate) script: Script,
}

/// Callbacks that run after a commit.
#[derive(Default)]
pub(crate) struct AfterCommit(Vec<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for AfterCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AfterCommit").field(&self.0.len()).finish()
    }
}

/// A connection outside of any transaction, for reading.
#[derive(Debug)]
pub struct Conn(pub(crate) AnyConnection);

/// The driver's own connection, for [`on!`](crate::on!).
#[derive(Debug)]
pub enum Raw<'a> {
    Sqlite(&'a mut SqliteConnection),
    MySql(&'a mut CancelSafeConnection<MySql>),
}

/// The text of an insert statement around its rows. Must never contain user input.
#[derive(Clone, Copy, Debug)]
pub struct InsertText<'a> {
    /// The text up to `VALUES`.
    pub head: &'a str,
    /// The text after the rows.
    pub tail: &'a str,
}

#[derive(Debug)]
pub(crate) enum AnyConnection {
    Sqlite(PooledConnection<Sqlite>),
    MySql(PooledConnection<MySql>),
}

impl Tx {
    pub(crate) fn new(connection: AnyConnection) -> Self {
        Self {
            connection,
            lock: None,
            locked: Vec::new(),
            waiting: Vec::new(),
            after_commit: AfterCommit::default(),
            script: Script::default(),
        }
    }

    pub(crate) fn locked(mut self, targets: &[Target<'_>]) -> Self {
        self.locked = targets.iter().copied().map(OwnedTarget::from).collect();
        self
    }

    /// Returns whether the transaction holds a lock on the target or on one of its ancestors. See
    /// [`Db::begin_locked`](crate::Db::begin_locked).
    pub fn holds(&self, target: &Target<'_>) -> bool {
        self.locked.iter().any(|locked| locked.as_target().covers(target))
    }

    /// Commits the transaction. On [`Error::Unreachable`] it is unknown whether the commit happened: the caller has to check, or to retry
    /// idempotently.
    pub fn commit(self) -> DbFuture<'static, ()> {
        Box::pin(async move {
            let dialect = self.dialect();
            let Self { connection, lock: _held, locked: _, waiting, after_commit, mut script } = self;
            mark::add_to(&mut script, dialect);
            let text = AssertSqlSafe(script.ending_with("COMMIT")).into_sql_str();
            match connection {
                AnyConnection::Sqlite(tx) => tx.commit(text).await?,
                AnyConnection::MySql(tx) => tx.commit(text).await?,
            }
            waiting.iter().for_each(|waiting| waiting.notify_one());
            after_commit.0.into_iter().for_each(|callback| callback());
            Ok(())
        })
    }

    /// Registers a callback for after the commit. It must not block. It may never run although the transaction was committed: if the
    /// process dies, or the response to the commit is lost.
    pub fn after_commit(&mut self, callback: impl FnOnce() + Send + 'static) {
        self.after_commit.0.push(Box::new(callback));
    }

    /// Inserts rows in the round trip of the commit. `head` is the statement up to `VALUES` and must never contain user input.
    ///
    /// Use it for rows that this transaction does not read. If the insert fails, the commit returns the error and nothing is committed.
    pub fn insert_at_commit<'a, const N: usize>(
        &mut self,
        head: &str,
        rows: impl IntoIterator<Item = [Value<'a>; N]>,
    ) {
        let dialect = self.dialect();
        self.script.insert(dialect, head, rows, "");
    }

    /// Deletes the rows with these values in the round trip of the commit. `head` is the statement up to `IN` and must never contain user
    /// input.
    pub fn delete_at_commit<'a>(&mut self, head: &str, values: impl IntoIterator<Item = Value<'a>>) {
        let dialect = self.dialect();
        self.script.change_in_list(dialect, head, values);
    }

    /// Updates the rows with these values in the round trip of the commit. `head` is the statement up to `IN` and must never contain user
    /// input.
    pub fn update_at_commit<'a>(&mut self, head: &str, values: impl IntoIterator<Item = Value<'a>>) {
        let dialect = self.dialect();
        self.script.change_in_list(dialect, head, values);
    }

    /// Inserts or updates rows in the round trip of the commit, like [`insert_at_commit`](Self::insert_at_commit). The tail of the text says
    /// what happens to existing rows.
    pub fn upsert_at_commit<'a, const N: usize>(
        &mut self,
        text: InsertText<'_>,
        rows: impl IntoIterator<Item = [Value<'a>; N]>,
    ) {
        let dialect = self.dialect();
        self.script.insert(dialect, text.head, rows, text.tail);
    }

    /// Executes the statements that were deferred to the commit so far. Needed by large transactions, because the server limits the size of a
    /// packet.
    pub async fn flush(&mut self) -> Result<(), Error> {
        let text = std::mem::take(&mut self.script).ending_with("");
        if text.is_empty() {
            return Ok(());
        }
        self.connection.execute_in_tx(text).await.map(drop)
    }

    /// Executes the statements deferred so far, inserts rows, and reads pairs of an id and a number, all in one round trip. `select` must never
    /// contain user input.
    pub async fn insert_and_read<'a, const N: usize>(
        &mut self,
        insert: InsertText<'_>,
        rows: impl IntoIterator<Item = [Value<'a>; N]>,
        select: &str,
    ) -> Result<Vec<(Vec<u8>, i64)>, Error> {
        let dialect = self.dialect();
        self.script.insert(dialect, insert.head, rows, insert.tail);
        let text = AssertSqlSafe(std::mem::take(&mut self.script).ending_with(select));
        let pairs: Result<_, sqlx::Error> = match &mut self.connection {
            AnyConnection::Sqlite(tx) => {
                let rows = sqlx::raw_sql(text).fetch_all(&mut **tx).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
            }
            AnyConnection::MySql(tx) => {
                let rows = sqlx::raw_sql(text).fetch_all(tx.cancel_safe()).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
            }
        };
        Ok(pairs?)
    }

    /// Notifies `waiting` after the commit. It is not notified if the transaction is not committed.
    pub fn wake_after_commit(&mut self, waiting: &Arc<Notify>) {
        if !self.waiting.iter().any(|known| Arc::ptr_eq(known, waiting)) {
            self.waiting.push(waiting.clone());
        }
    }

    pub fn rollback(self) -> DbFuture<'static, ()> {
        Box::pin(async move {
            let Self { connection, lock: _held, .. } = self;
            match connection {
                AnyConnection::Sqlite(tx) => tx.rollback().await,
                AnyConnection::MySql(tx) => tx.rollback().await,
            }
        })
    }

    pub const fn dialect(&self) -> Dialect {
        match self.connection {
            AnyConnection::Sqlite(_) => Dialect::Sqlite,
            AnyConnection::MySql(_) => Dialect::MySql,
        }
    }

    pub fn raw(&mut self) -> Raw<'_> {
        self.connection.raw()
    }
}

impl Conn {
    pub fn raw(&mut self) -> Raw<'_> {
        self.0.raw()
    }
}

impl AnyConnection {
    /// Executes statements in the open transaction. Returns how many rows they changed.
    pub(crate) async fn execute_in_tx(&mut self, text: String) -> Result<u64, Error> {
        let text = AssertSqlSafe(text).into_sql_str();
        match self {
            Self::Sqlite(tx) => tx.execute_in_tx(text).await,
            Self::MySql(tx) => tx.execute_in_tx(text).await,
        }
    }

    fn raw(&mut self) -> Raw<'_> {
        match self {
            Self::Sqlite(connection) => Raw::Sqlite(connection),
            Self::MySql(connection) => Raw::MySql(connection.cancel_safe()),
        }
    }
}

/// Runs an expression on the connection of a [`Tx`] or [`Conn`], in either dialect.
///
/// ```
/// # async fn example(tx: &mut db::Tx, user: &str) -> Result<u64, db::Error> {
/// let result = db::on!(tx, connection => {
///     sqlx::query("DELETE FROM example WHERE user = ?").bind(user).execute(connection).await?.rows_affected()
/// });
/// # Ok(result)
/// # }
/// ```
#[macro_export]
macro_rules! on {
    ($owner:expr, $connection:ident => $body:expr) => {
        match $owner.raw() {
            $crate::Raw::Sqlite($connection) => $body,
            $crate::Raw::MySql($connection) => $body,
        }
    };
}

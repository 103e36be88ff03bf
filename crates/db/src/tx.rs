//! Connections and transactions of either dialect.

use std::fmt;
use std::sync::Arc;

use hierlock::{Lock, OwnedTarget, Target};
use sqlx::{AssertSqlSafe, MySql, Row, SqlSafeStr, Sqlite, SqliteConnection};

use tokio::sync::Notify;

use crate::pooled::Pooled;
use crate::script::Script;
use crate::watched::Watched;
use crate::{DbFuture, Dialect, Error, Value, mark};

/// An open transaction. It is rolled back unless [`commit`](Self::commit) is called.
///
/// Statements have no time limit of their own: a caller that cannot wait drops the transaction, which frees its connection. But do nothing
/// else between two statements: a server ends a transaction that says nothing for three times `db.acquire_timeout`.
#[derive(Debug)]
pub struct Tx {
    // Dropped in this order: the lock outlives what it protects.
    pub(crate) connection: Either,
    /// Of this process, for a store whose own locks would not do.
    pub(crate) lock: Option<Lock>,
    /// The targets that are locked until the transaction ends.
    pub(crate) locked: Vec<OwnedTarget>,
    /// Who is woken when the transaction has become true.
    pub(crate) waiting: Vec<Arc<Notify>>,
    /// What is done then.
    pub(crate) then: Then,
    /// What is written on the way of the commit.
    pub(crate) script: Script,
}

/// What is done when a transaction has become true.
#[derive(Default)]
pub(crate) struct Then(Vec<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Then").field(&self.0.len()).finish()
    }
}

/// A connection outside of any transaction, for reading.
#[derive(Debug)]
pub struct Conn(pub(crate) Either);

/// The driver's own connection, for [`on!`](crate::on!).
#[derive(Debug)]
pub enum Raw<'a> {
    Sqlite(&'a mut SqliteConnection),
    MySql(&'a mut Watched<MySql>),
}

/// The text of a statement that inserts, around its rows. Never made of what somebody sent.
#[derive(Clone, Copy, Debug)]
pub struct InsertText<'a> {
    /// Up to `VALUES`.
    pub head: &'a str,
    /// Behind the rows.
    pub tail: &'a str,
}

#[derive(Debug)]
pub(crate) enum Either {
    Sqlite(Pooled<Sqlite>),
    MySql(Pooled<MySql>),
}

impl Tx {
    pub(crate) fn new(connection: Either) -> Self {
        Self {
            connection,
            lock: None,
            locked: Vec::new(),
            waiting: Vec::new(),
            then: Then::default(),
            script: Script::default(),
        }
    }

    pub(crate) fn locked(mut self, targets: &[Target<'_>]) -> Self {
        self.locked = targets.iter().copied().map(OwnedTarget::from).collect();
        self
    }

    /// Returns whether the transaction holds the lock on a target, or on one above it: see [`Db::begin_locked`](crate::Db::begin_locked).
    pub fn holds(&self, target: &Target<'_>) -> bool {
        self.locked.iter().any(|locked| locked.as_target().covers(target))
    }

    /// Makes everything done in the transaction true, or nothing of it. When it fails with [`Error::Unreachable`], nobody
    /// knows which: the caller has to look, or to do it again in a way that can be done twice.
    pub fn commit(self) -> DbFuture<'static, ()> {
        Box::pin(async move {
            let dialect = self.dialect();
            let Self { connection, lock: _held, locked: _, waiting, then, mut script } = self;
            mark::add_to(&mut script, dialect);
            let text = AssertSqlSafe(script.ending_with("COMMIT")).into_sql_str();
            match connection {
                Either::Sqlite(tx) => tx.commit(text).await?,
                Either::MySql(tx) => tx.commit(text).await?,
            }
            waiting.iter().for_each(|waiting| waiting.notify_one());
            then.0.into_iter().for_each(|next| next());
            Ok(())
        })
    }

    /// Does something, which takes no time, once the transaction has been committed and this process knows it. It may never be done
    /// although the transaction is true: when the process dies, or the word of the commit is lost.
    pub fn after_commit(&mut self, next: impl FnOnce() + Send + 'static) {
        self.then.0.push(Box::new(next));
    }

    /// Inserts rows when the transaction is committed, with the same message to the server. `head` is the statement up to
    /// `VALUES`, and never made of what somebody sent.
    ///
    /// For what this transaction does not read itself. What is wrong with it is the commit's error, and then nothing has
    /// happened.
    pub fn insert_at_commit<'a, const N: usize>(
        &mut self,
        head: &str,
        rows: impl IntoIterator<Item = [Value<'a>; N]>,
    ) {
        let dialect = self.dialect();
        self.script.insert(dialect, head, rows, "");
    }

    /// Deletes the rows with these values when the transaction is committed, with the same message to the server. `head` is the
    /// statement up to `IN`, and never made of what somebody sent.
    pub fn delete_at_commit<'a>(&mut self, head: &str, values: impl IntoIterator<Item = Value<'a>>) {
        let dialect = self.dialect();
        self.script.over_list(dialect, head, values);
    }

    /// Updates the rows with these values when the transaction is committed, with the same message to the server. `head` is the
    /// statement up to `IN`, and never made of what somebody sent.
    pub fn update_at_commit<'a>(&mut self, head: &str, values: impl IntoIterator<Item = Value<'a>>) {
        let dialect = self.dialect();
        self.script.over_list(dialect, head, values);
    }

    /// Inserts rows when the transaction is committed, as [`insert_at_commit`](Self::insert_at_commit) does. The tail of the text says
    /// what becomes of rows that exist.
    pub fn upsert_at_commit<'a, const N: usize>(
        &mut self,
        text: InsertText<'_>,
        rows: impl IntoIterator<Item = [Value<'a>; N]>,
    ) {
        let dialect = self.dialect();
        self.script.insert(dialect, text.head, rows, text.tail);
    }

    /// Writes now what was to be inserted at the commit so far: a server takes messages up to some size only, and a transaction
    /// may have more to say.
    pub async fn write(&mut self) -> Result<(), Error> {
        let text = std::mem::take(&mut self.script).ending_with("");
        if text.is_empty() {
            return Ok(());
        }
        self.connection.write(text).await.map(drop)
    }

    /// Inserts rows now, after those that were to be inserted at the commit so far, and reads pairs of an id and a number, all in one
    /// round trip. `select` is never made of what somebody sent.
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
            Either::Sqlite(tx) => {
                let rows = sqlx::raw_sql(text).fetch_all(&mut **tx).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
            }
            Either::MySql(tx) => {
                let rows = sqlx::raw_sql(text).fetch_all(tx.watched()).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
            }
        };
        Ok(pairs?)
    }

    /// Wakes whoever waits, once the transaction has been committed. If it never is, nobody is woken.
    pub fn wake_after_commit(&mut self, waiting: &Arc<Notify>) {
        if !self.waiting.iter().any(|known| Arc::ptr_eq(known, waiting)) {
            self.waiting.push(waiting.clone());
        }
    }

    pub fn rollback(self) -> DbFuture<'static, ()> {
        Box::pin(async move {
            let Self { connection, lock: _held, .. } = self;
            match connection {
                Either::Sqlite(tx) => tx.rollback().await,
                Either::MySql(tx) => tx.rollback().await,
            }
        })
    }

    pub const fn dialect(&self) -> Dialect {
        match self.connection {
            Either::Sqlite(_) => Dialect::Sqlite,
            Either::MySql(_) => Dialect::MySql,
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

impl Either {
    /// Tells the server something in the middle of the transaction, and says how many rows that changed.
    pub(crate) async fn write(&mut self, text: String) -> Result<u64, Error> {
        let text = AssertSqlSafe(text).into_sql_str();
        match self {
            Self::Sqlite(tx) => tx.write(text).await,
            Self::MySql(tx) => tx.write(text).await,
        }
    }

    fn raw(&mut self) -> Raw<'_> {
        match self {
            Self::Sqlite(connection) => Raw::Sqlite(connection),
            Self::MySql(connection) => Raw::MySql(connection.watched()),
        }
    }
}

/// Runs one expression on the connection of a [`Tx`] or [`Conn`], whichever dialect it is.
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

//! Connections and transactions of either dialect.

use hierlock::Lock;
use sqlx::{MySql, MySqlConnection, Sqlite, SqliteConnection};

use crate::pooled::Pooled;
use crate::{Dialect, Error};

/// An open transaction. It is rolled back unless [`commit`](Self::commit) is called.
///
/// Statements have no time limit of their own: whoever cannot wait drops the transaction, which frees its connection.
#[derive(Debug)]
pub struct Tx {
    // Dropped in this order: the lock outlives what it protects.
    pub(crate) connection: Either,
    /// Of this process, for a store whose own locks would not do.
    pub(crate) lock: Option<Lock>,
}

/// A connection outside of any transaction, for reading.
#[derive(Debug)]
pub struct Conn(pub(crate) Either);

/// The driver's own connection, for [`on!`](crate::on!).
#[derive(Debug)]
pub enum Raw<'a> {
    Sqlite(&'a mut SqliteConnection),
    MySql(&'a mut MySqlConnection),
}

#[derive(Debug)]
pub(crate) enum Either {
    Sqlite(Pooled<Sqlite>),
    MySql(Pooled<MySql>),
}

impl Tx {
    /// Makes everything done in the transaction true, or nothing of it. When it fails with [`Error::Unreachable`], nobody
    /// knows which: the caller has to look, or to do it again in a way that can be done twice.
    pub async fn commit(self) -> Result<(), Error> {
        let Self { connection, lock: _held } = self;
        match connection {
            Either::Sqlite(tx) => tx.commit().await,
            Either::MySql(tx) => tx.commit().await,
        }
    }

    pub async fn rollback(self) -> Result<(), Error> {
        let Self { connection, lock: _held } = self;
        match connection {
            Either::Sqlite(tx) => tx.rollback().await,
            Either::MySql(tx) => tx.rollback().await,
        }
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
    fn raw(&mut self) -> Raw<'_> {
        match self {
            Self::Sqlite(connection) => Raw::Sqlite(connection),
            Self::MySql(connection) => Raw::MySql(connection),
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

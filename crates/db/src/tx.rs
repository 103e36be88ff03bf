//! Connections and transactions of either dialect.

use sqlx::pool::PoolConnection;
use sqlx::{MySql, MySqlConnection, Sqlite, SqliteConnection, Transaction};

use crate::{Dialect, Error};

/// An open transaction. It is rolled back unless [`commit`](Self::commit) is called.
#[derive(Debug)]
pub enum Tx {
    Sqlite(Transaction<'static, Sqlite>),
    MySql(Transaction<'static, MySql>),
}

/// A connection outside of any transaction, for reading.
#[derive(Debug)]
pub enum Conn {
    Sqlite(PoolConnection<Sqlite>),
    MySql(PoolConnection<MySql>),
}

/// The driver's own connection, for [`on!`](crate::on!).
#[derive(Debug)]
pub enum Raw<'a> {
    Sqlite(&'a mut SqliteConnection),
    MySql(&'a mut MySqlConnection),
}

impl Tx {
    /// Makes everything done in the transaction true, or nothing of it.
    pub async fn commit(self) -> Result<(), Error> {
        match self {
            Self::Sqlite(tx) => tx.commit().await?,
            Self::MySql(tx) => tx.commit().await?,
        }
        Ok(())
    }

    pub async fn rollback(self) -> Result<(), Error> {
        match self {
            Self::Sqlite(tx) => tx.rollback().await?,
            Self::MySql(tx) => tx.rollback().await?,
        }
        Ok(())
    }

    pub const fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::MySql(_) => Dialect::MySql,
        }
    }

    pub fn raw(&mut self) -> Raw<'_> {
        match self {
            Self::Sqlite(tx) => Raw::Sqlite(tx),
            Self::MySql(tx) => Raw::MySql(tx),
        }
    }
}

impl Conn {
    pub fn raw(&mut self) -> Raw<'_> {
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

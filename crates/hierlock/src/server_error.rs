//! What the error numbers of MySQL and MariaDB mean to us: the one table of them.

use sqlx::mysql::MySqlDatabaseError;

/// An error of the server's, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerError {
    /// The transaction was rolled back to end a deadlock. Galera reports its write conflicts the same way.
    Deadlock,
    /// The transaction lost to another one that committed first: run it again from the beginning.
    Conflict,
    /// Another transaction held a row for longer than `innodb_lock_wait_timeout`.
    LockWaitTimeout,
    /// The statement ran for longer than the server allows.
    StatementTimeout,
    /// The server is full, shutting down or not part of its cluster, or it has ended the session or the statement.
    Away,
    /// The server takes no writes: it was demoted, or is about to be promoted.
    ReadOnly,
    AccessDenied,
    NoDatabase,
    NoTable,
    /// There is no session with this number to kill.
    NoSession,
    /// A table, column or key that is to be made exists, or one that is to be dropped does not.
    AlreadyDone,
    Other,
}

impl ServerError {
    /// Returns None if the error is not one of the server's.
    pub fn of(error: &sqlx::Error) -> Option<Self> {
        let database = error.as_database_error()?;
        database.try_downcast_ref::<MySqlDatabaseError>().map(|error| Self::from_number(error.number()))
    }

    pub const fn from_number(number: u16) -> Self {
        match number {
            1213 => Self::Deadlock,
            // ER_CHECKREAD: MariaDB's snapshot isolation. ER_TRANSACTION_ROLLBACK_DURING_COMMIT: group replication.
            1020 | 3101 => Self::Conflict,
            1205 => Self::LockWaitTimeout,
            // MariaDB, MySQL.
            1969 | 3024 => Self::StatementTimeout,
            // Too many connections, in all and of this user.
            1040 | 1203
            // A Galera node that is not in the primary component answers every statement with ER_UNKNOWN_COM_ERROR.
            | 1047
            // Shutting down; the statement was killed; the session was killed (MariaDB, MySQL) or aborted.
            | 1053 | 1317 | 1927 | 3169 | 1152 | 1184
            // A packet could not be read or written, or not in time; the session was silent for too long (MySQL).
            | 1158..=1161 | 4031 => Self::Away,
            // An option (`read_only`, `super_read_only`) forbids it; a read-only transaction; a read-only mode; InnoDB is read-only.
            1290 | 1792 | 1836 | 1874 => Self::ReadOnly,
            1044 | 1045 | 1698 => Self::AccessDenied,
            1049 => Self::NoDatabase,
            1146 => Self::NoTable,
            1094 => Self::NoSession,
            1050 | 1051 | 1060 | 1061 | 1091 => Self::AlreadyDone,
            _ => Self::Other,
        }
    }
}

//! The meaning of MySQL and MariaDB error numbers, in one table.

use sqlx::mysql::MySqlDatabaseError;

/// An error of the server, classified by what a client can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerError {
    /// The transaction was rolled back to end a deadlock. Galera reports its write conflicts the same way.
    Deadlock,
    /// The transaction lost to another one that committed first. Retry it from the beginning.
    Conflict,
    /// Another transaction held a row for longer than `innodb_lock_wait_timeout`.
    LockWaitTimeout,
    /// The statement ran for longer than the server allows.
    StatementTimeout,
    /// The server is full, shutting down or not part of its cluster, or it has ended the session or the statement.
    Unavailable,
    /// The server takes no writes: it was demoted, or is about to be promoted.
    ReadOnly,
    AccessDenied,
    /// The user may not run this statement: a privilege is missing.
    MissingPrivilege,
    UnknownDatabase,
    UnknownTable,
    /// There is no session with this id to kill.
    UnknownSession,
    /// The table, column or key to be created exists, or the one to be dropped does not.
    AlreadyApplied,
    Other,
}

impl ServerError {
    /// Classifies an error. None if it does not come from the server.
    pub fn classify(error: &sqlx::Error) -> Option<Self> {
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
            // Too many connections, in total or of this user.
            1040 | 1203
            // A Galera node that is not in the primary component answers every statement with ER_UNKNOWN_COM_ERROR.
            | 1047
            // Shutting down; the statement was killed; the session was killed (MariaDB, MySQL) or aborted.
            | 1053 | 1317 | 1927 | 3169 | 1152 | 1184
            // A packet could not be read or written, or not in time; the session was idle for too long (MySQL).
            | 1158..=1161 | 4031 => Self::Unavailable,
            // An option (`read_only`, `super_read_only`) forbids it; a read-only transaction; a read-only mode; InnoDB is read-only.
            1290 | 1792 | 1836 | 1874 => Self::ReadOnly,
            1044 | 1045 | 1698 => Self::AccessDenied,
            // On a table, on a column, or a global one such as PROCESS.
            1142 | 1143 | 1227 => Self::MissingPrivilege,
            1049 => Self::UnknownDatabase,
            1146 => Self::UnknownTable,
            1094 => Self::UnknownSession,
            1050 | 1051 | 1060 | 1061 | 1091 => Self::AlreadyApplied,
            _ => Self::Other,
        }
    }
}

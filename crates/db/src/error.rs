//! The errors of the SQL store.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use base::Code;
use base::error::Coded;
use hierlock::ServerError;

/// An error of the SQL store. Each variant is something that a caller or an operator can act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store does not answer. Retry later.
    #[error("the database cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// The server answers but takes no writes: it was demoted, or a failover is in progress. Nothing was changed. Retry later.
    #[error("the database is read-only at the moment; if this lasts, point db.url at the primary")]
    ReadOnly(#[source] Option<sqlx::Error>),
    /// The transaction conflicted with another one and was rolled back. Retry it from the beginning.
    #[error("the transaction conflicted with another one")]
    Busy(#[source] sqlx::Error),
    /// A row with this key exists.
    #[error("a row with this key exists already")]
    Duplicate(#[source] sqlx::Error),
    /// The store rejects our credentials, our TLS settings or the database name.
    #[error("the database refuses the connection: {advice}")]
    Refused { advice: &'static str, source: sqlx::Error },
    /// The server answers but lacks a feature that we rely on.
    #[error("{0}. Use MySQL 8.0 or newer, or MariaDB 10.6 or newer")]
    UnsupportedServer(String),
    #[error(
        "{} is in use by another process. SQLite serves a single process: stop the other one, choose another file, or set \
         db.url to a mysql: URL to run several", .0.display()
    )]
    InUse(PathBuf),
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}. Run `playhouse migrate`, or set db.migrate = true", describe_pending(.0))]
    PendingMigrations(Vec<String>),
    #[error("migration {name}: {what}")]
    Migration { name: String, what: String, source: Option<Box<Error>> },
    #[error("another process has been migrating for {0} seconds; check its log, then try again")]
    MigrationLock(u32),
    #[error("deployment_settings holds {0:?} as the deployment id, which is not a valid id")]
    Deployment(String),
    /// A stored value that no version of this program has written.
    #[error("the row {row} of {table} cannot be read: {cause}")]
    Corrupt { table: &'static str, row: String, cause: String },
    #[error(transparent)]
    Lock(#[from] hierlock::Error),
    /// A bug in this program.
    #[error("the statement failed")]
    Statement(#[source] sqlx::Error),
}

impl Error {
    /// Classifies the error that MySQL or MariaDB returned. None if no server error is behind this one.
    pub(crate) fn server_error(&self) -> Option<ServerError> {
        match self {
            Self::Unreachable(error)
            | Self::ReadOnly(Some(error))
            | Self::Busy(error)
            | Self::Duplicate(error)
            | Self::Refused { source: error, .. }
            | Self::Statement(error) => ServerError::classify(error),
            _ => None,
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) | Self::ReadOnly(_) | Self::Busy(_) => Code::Unavailable,
            Self::Duplicate(_) => Code::Conflict,
            Self::Lock(error) => error.code(),
            _ => Code::Internal,
        }
    }
}

/// Fails after `limit`: the driver waits forever on a connection that has gone silent.
pub(crate) async fn bounded<T, E: Into<Error>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(timed_out(limit)),
    }
}

/// Returns the error for an operation that took longer than `limit`.
pub(crate) fn timed_out(limit: Duration) -> Error {
    let timed_out = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    Error::Unreachable(timed_out.into())
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if matches!(error, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) {
            return Self::Unreachable(error);
        }
        if matches!(error, sqlx::Error::Tls(_)) {
            return Self::Refused { advice: "check ssl-mode and ssl-ca in db.url", source: error };
        }
        let Some(database) = error.as_database_error() else { return Self::Statement(error) };
        if database.is_unique_violation() {
            return Self::Duplicate(error);
        }
        if database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
            // The primary code is the low byte: 5 is busy, 6 is locked.
            let primary = database.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff);
            return if matches!(primary, Some(5 | 6)) { Self::Busy(error) } else { Self::Statement(error) };
        }
        match ServerError::classify(&error) {
            Some(ServerError::Deadlock | ServerError::Conflict | ServerError::LockWaitTimeout) => {
                Self::Busy(error)
            }
            Some(ServerError::Unavailable) => Self::Unreachable(error),
            Some(ServerError::ReadOnly) => Self::ReadOnly(Some(error)),
            Some(ServerError::AccessDenied) => Self::Refused {
                advice: "check the user and password in db.url and the user's privileges; an anonymous user ''@'localhost' hides 'NAME'@'%'",
                source: error,
            },
            Some(ServerError::UnknownDatabase) => {
                Self::Refused { advice: "create the database that db.url names", source: error }
            }
            _ => Self::Statement(error),
        }
    }
}

/// Names a few pending migrations; of many, only the first and the number.
fn describe_pending(pending: &[String]) -> String {
    match pending {
        [] | [_] | [_, _] | [_, _, _] => {
            format!("the database is not up to date, pending: {}", pending.join(", "))
        }
        [first, ..] => format!(
            "the database is not up to date: {} migrations are pending, the first is {first}",
            pending.len()
        ),
    }
}

//! What can go wrong with the SQL store.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use base::Code;
use base::error::Coded;
use hierlock::ServerError;

/// What can go wrong, by what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store is away. Try again later.
    #[error("the database cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// The server answers and takes no writes: it was demoted, or its fail-over is under way. Nothing was changed. Try again later.
    #[error(
        "the database takes no writes at the moment (read-only); if this lasts, point db.url at the primary"
    )]
    ReadOnly(#[source] Option<sqlx::Error>),
    /// The transaction met another one and was rolled back. Try again from the beginning.
    #[error("the transaction was in conflict with another one")]
    Busy(#[source] sqlx::Error),
    /// A row with this key exists.
    #[error("a row with this key exists already")]
    Duplicate(#[source] sqlx::Error),
    /// The store does not let us in.
    #[error("the database refuses the connection: {advice}")]
    Refused { advice: &'static str, source: sqlx::Error },
    /// The server answers and cannot do what is asked of it.
    #[error("{0}. Use MySQL 8.0 or newer, or MariaDB 10.6 or newer")]
    Unfit(String),
    #[error(
        "{} is in use by another process. SQLite serves one process: stop the other one, choose another file, or give \
         db.url a mysql: URL to run several", .0.display()
    )]
    InUse(PathBuf),
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the database is not up to date, pending: {}. Run `playhouse migrate`, or set db.migrate = true", .0.join(", "))]
    PendingMigrations(Vec<String>),
    #[error("migration {name}: {what}")]
    Migration { name: String, what: String, source: Option<Box<Error>> },
    #[error("another process has been migrating for {0} seconds; look at what it does, then try again")]
    MigrationLock(u32),
    #[error("deployment_settings holds {0:?} as the deployment's id, which is none")]
    Deployment(String),
    /// What is stored is not what any version of ours has written.
    #[error("the row {row} of {table} cannot be read: {cause}")]
    Corrupt { table: &'static str, row: String, cause: String },
    #[error(transparent)]
    Lock(#[from] hierlock::Error),
    /// A mistake of ours.
    #[error("the statement failed")]
    Statement(#[source] sqlx::Error),
}

impl Error {
    /// What the server said, where it is MySQL or MariaDB and said something.
    pub(crate) fn of_server(&self) -> Option<ServerError> {
        match self {
            Self::Unreachable(error)
            | Self::ReadOnly(Some(error))
            | Self::Busy(error)
            | Self::Duplicate(error)
            | Self::Refused { source: error, .. }
            | Self::Statement(error) => ServerError::of(error),
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

/// Gives up after `limit`: the driver waits for ever on a connection that has fallen silent.
pub(crate) async fn bounded<T, E: Into<Error>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(silent(limit)),
    }
}

/// Nothing was heard for so long.
pub(crate) fn silent(limit: Duration) -> Error {
    let silent = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    Error::Unreachable(silent.into())
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
        match ServerError::of(&error) {
            Some(ServerError::Deadlock | ServerError::Conflict | ServerError::LockWaitTimeout) => {
                Self::Busy(error)
            }
            Some(ServerError::Away) => Self::Unreachable(error),
            Some(ServerError::ReadOnly) => Self::ReadOnly(Some(error)),
            Some(ServerError::AccessDenied) => Self::Refused {
                advice: "check the user, the password and its rights in db.url",
                source: error,
            },
            Some(ServerError::NoDatabase) => {
                Self::Refused { advice: "create the database that db.url names", source: error }
            }
            _ => Self::Statement(error),
        }
    }
}

//! Errors of the store of short-lived state.

use base::Code;
use base::error::Coded;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a command failed. The variants differ in what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store is unreachable or still loading its data. Retry later.
    #[error("Redis cannot be reached")]
    Unreachable(#[source] RedisError),
    /// The store rejects our credentials.
    #[error("Redis refuses the connection: check the user and the password in redis.url")]
    Refused(#[source] RedisError),
    /// The server answers but is not suitable.
    #[error("{0}")]
    Unfit(String),
    /// The command itself is wrong.
    #[error("the command failed")]
    Command(#[source] RedisError),
}

impl Error {
    /// Creates the error of a server that did not answer in time.
    pub fn silent() -> Self {
        Self::Unreachable((ErrorKind::Io, "no answer in time").into())
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) => Code::Unavailable,
            Self::Refused(_) | Self::Unfit(_) | Self::Command(_) => Code::Internal,
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        const TRANSIENT: [ServerErrorKind; 5] = [
            ServerErrorKind::BusyLoading,
            ServerErrorKind::TryAgain,
            ServerErrorKind::ClusterDown,
            ServerErrorKind::MasterDown,
            ServerErrorKind::ReadOnly,
        ];
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Refused(error),
            ErrorKind::Server(kind) if TRANSIENT.contains(&kind) => Self::Unreachable(error),
            _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => Self::Refused(error),
            ErrorKind::Io => Self::Unreachable(error),
            _ if error.is_timeout() || error.is_connection_dropped() => Self::Unreachable(error),
            _ => Self::Command(error),
        }
    }
}

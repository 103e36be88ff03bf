//! What can go wrong with the store of short-lived state.

use base::Code;
use base::error::Coded;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// What can go wrong, by what can be done about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The store is away, or still loading its data. Try again later.
    #[error("Redis cannot be reached")]
    Unreachable(#[source] RedisError),
    /// The store does not let us in.
    #[error("Redis refuses the connection: check the user and the password in hot.url")]
    Refused(#[source] RedisError),
    /// The server answers and cannot do what is asked of it.
    #[error("{0}")]
    Unfit(String),
    /// A mistake of ours.
    #[error("the command failed")]
    Command(#[source] RedisError),
}

impl Error {
    /// Returns the error of a server that did not answer in time.
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
        const PASSING: [ServerErrorKind; 5] = [
            ServerErrorKind::BusyLoading,
            ServerErrorKind::TryAgain,
            ServerErrorKind::ClusterDown,
            ServerErrorKind::MasterDown,
            ServerErrorKind::ReadOnly,
        ];
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Refused(error),
            ErrorKind::Server(kind) if PASSING.contains(&kind) => Self::Unreachable(error),
            _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => Self::Refused(error),
            ErrorKind::Io => Self::Unreachable(error),
            _ if error.is_timeout() || error.is_connection_dropped() => Self::Unreachable(error),
            _ => Self::Command(error),
        }
    }
}

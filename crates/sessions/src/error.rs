//! Why sessions cannot be read or changed.

use base::Code;
use base::error::Coded;

/// Why sessions cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis, which has the sessions.
    #[error(transparent)]
    Redis(#[from] redis_store::Error),
    /// SQL, which knows which of them have ended.
    #[error(transparent)]
    Db(#[from] db::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Redis(error) => error.code(),
            Self::Db(error) => error.code(),
        }
    }
}

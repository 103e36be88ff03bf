//! Errors of reading and changing sessions.

use base::Code;
use base::error::Coded;

/// An error of reading or changing a session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis, which holds the sessions.
    #[error(transparent)]
    Redis(#[from] redis_store::Error),
    /// SQL, which records the ended sessions.
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

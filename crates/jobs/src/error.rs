//! Errors of jobs.

use base::Code;
use base::error::Coded;

use crate::JobId;

/// One variant per thing that a caller can act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no job {0}, or it was removed 30 days after it ended")]
    NotFound(JobId),
    #[error("{0}")]
    NotPossible(String),
    #[error(transparent)]
    Db(#[from] db::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::NotFound(_) => Code::NotFound,
            Self::NotPossible(_) => Code::FailedPrecondition,
            Self::Db(error) => error.code(),
        }
    }
}

//! Maps the errors of scripts.

use redis::RedisError;

use crate::Error;

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        if error.code() == Some("LOCKLOST") { Self::Locked } else { Self::Store(error.into()) }
    }
}

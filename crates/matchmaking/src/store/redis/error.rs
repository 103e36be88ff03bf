//! Maps the errors of scripts.

use redis::RedisError;

use crate::Error;

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        match error.code() {
            Some("LOCKLOST" | "LOCKHELD") => Self::Locked,
            _ => Self::Store(error.into()),
        }
    }
}

//! The secrets that admission tokens are signed with.

mod store;

use std::fmt;
use std::sync::Arc;

use ::config::Secret;
use aws_lc_rs::rand;
use db::Db;

use crate::error::Error;

/// The secrets of the keys that sign admission tokens, the newest first. The first one signs, all of them verify. Never empty.
/// Cheap to clone; clones share the secrets.
#[derive(Clone)]
pub struct TokenSecrets(Arc<[Vec<u8>]>);

impl TokenSecrets {
    /// Returns the configured secrets. Without any, returns the one in SQL that all processes share; the first process generates it.
    ///
    /// A secret per process would not work: a player gets the token from one gateway and shows it to another.
    pub async fn load(db: &Db, configured: &[Secret]) -> Result<Self, Error> {
        if !configured.is_empty() {
            return Ok(Self(configured.iter().map(|key| key.expose().as_bytes().to_vec()).collect()));
        }
        let mut generated = [0; 32];
        rand::fill(&mut generated).map_err(|_| Error::NoRandomBytes)?;
        let shared =
            db::retry_conflicts(db::Error::is_conflict, || store::insert_or_load(db, &generated)).await?;
        Ok(Self([shared].into()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
}

/// Shows the number of secrets, but not the secrets.
impl fmt::Debug for TokenSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSecrets").field("count", &self.0.len()).finish()
    }
}

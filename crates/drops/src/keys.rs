//! The secrets that admission tokens are signed with.

mod store;

use std::fmt;
use std::sync::Arc;

use ::config::Secret;
use aws_lc_rs::rand;
use db::Db;

use crate::error::Error;

/// Secrets of the keys that sign admission tokens, the newest first: the first one signs, all of them verify. Never empty.
/// Cheap to clone; clones share the secrets.
#[derive(Clone)]
pub struct TokenSecrets(Arc<[Vec<u8>]>);

impl TokenSecrets {
    /// Returns the configured secrets. Without any, returns the one that SQL keeps for all processes, which the first of them makes.
    ///
    /// A secret per process would not do: a player gets the token from one gateway and shows it to another.
    pub async fn load(db: &Db, configured: &[Secret]) -> Result<Self, Error> {
        if !configured.is_empty() {
            return Ok(Self(configured.iter().map(|key| key.expose().as_bytes().to_vec()).collect()));
        }
        let mut made = [0; 32];
        rand::fill(&mut made).map_err(|_| Error::NoSeed)?;
        let kept = db::retrying(db::Error::is_conflict, || store::keep(db, &made)).await?;
        Ok(Self([kept].into()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
}

/// Shows how many there are, and none of them.
impl fmt::Debug for TokenSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSecrets").field("count", &self.0.len()).finish()
    }
}

//! A small issuer for development.

use base::Clock;
use url::Url;

use crate::config::Config;
use crate::error::Error;

/// The issuer. Clones are the same.
#[derive(Clone, Debug)]
pub struct Builtin(());

impl Builtin {
    /// `issuer` is where [`routes`](Self::routes) will be found; redirects lead to below `redirects_under` only.
    pub fn new(_config: &Config, _issuer: Url, _redirects_under: Url, _clock: Clock) -> Result<Self, Error> {
        Ok(Self(()))
    }

    /// Everything below the issuer's path.
    pub fn routes(&self) -> axum::Router {
        axum::Router::new()
    }

    /// An access token for scripts, good for an hour. `role` is `player`, `operator`, `service`, or any other role as it is.
    pub fn token(&self, _user: &str, _role: Option<&str>) -> Result<String, Error> {
        Err(Error::Key("not yet"))
    }

    /// From now on a new key signs. The old one stays published for a while.
    pub fn rotate_keys(&self) -> Result<(), Error> {
        Ok(())
    }
}

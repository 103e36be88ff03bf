//! Settings of the console.

use std::net::SocketAddr;
use std::time::Duration;

use ::config::{Reader, Section};
use url::Url;

/// Settings of the console.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether the console is served.
    pub enabled: bool,
    /// The URL under which operators reach the admin listener. None for the address that it is bound to.
    pub url: Option<Url>,
    /// How long an operator stays signed in.
    pub session_lifetime: Duration,
    /// Whether the console offers no actions.
    pub read_only: bool,
    /// Whether the screens for development are shown.
    pub try_it: bool,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            enabled: reader.get("enabled"),
            url: reader.optional("url"),
            session_lifetime: reader
                .get_within("session_lifetime", Duration::from_secs(60)..=Duration::from_secs(30 * 86_400)),
            read_only: reader.get("read_only"),
            try_it: reader.get("try_it"),
        }
    }
}

impl Config {
    /// Returns the origin of the console: that of `console.url`, or of the address that the admin listener is bound to.
    pub(crate) fn origin(&self, admin: SocketAddr) -> String {
        match &self.url {
            Some(url) => url.origin().ascii_serialization(),
            None => format!("http://{admin}"),
        }
    }
}
